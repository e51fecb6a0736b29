//! From text to token ids and back.

#[cfg_attr(not(feature = "tokenizers"), path = "no_file.rs")]
mod file;
#[cfg_attr(not(feature = "tiktoken"), path = "no_gpt2.rs")]
mod gpt2;
mod pieces;
mod stream;

use std::path::{Path, PathBuf};

use chimera_core::fault::Fault;

pub use file::FileTokenizer;
use pieces::pieces_around;
pub use pieces::{TextPiece, pieces};
pub use stream::Stream;

use crate::formats::files::{self, read_regular};

/// What turns text into the tokens of the model.
pub const TOKENIZER: &str = "tokenizer.json";

/// Larger `tokenizer.json` files are refused before they are read.
pub(crate) const MAX_BYTES: u64 = 128 << 20;
/// The most ids that a vocabulary may have, as for the setting `vocab`.
const MAX_VOCAB: usize = 1 << 24;

/// What ends a text of GPT-2.
const END_OF_TEXT: &str = "<|endoftext|>";
/// What ends a text of others, as their tokenizers name it; the first that is there is taken.
const ENDS: [&str; 6] =
    [END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|end▁of▁sentence|>", "[SEP]"];

/// Why there is no such tokenizer (exit code 2).
#[derive(thiserror::Error, Debug)]
pub enum TokenizerError {
    /// Neither a name nor a file.
    #[error("unknown tokenizer `{0}`: choose bytes, gpt2 or a tokenizer.json file")]
    Unknown(String),
    /// The file system refuses.
    #[error("cannot read tokenizer {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: std::io::Error,
    },
    /// More than a tokenizer has.
    #[error("tokenizer {} is larger than {MAX_BYTES} bytes", path.display())]
    Large {
        /// The file.
        path: PathBuf,
    },
    /// Not in the format of Hugging Face's `tokenizers`.
    #[error("{} is no tokenizer.json: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the reader says.
        reason: String,
    },
    /// The vocabulary of GPT-2 is not in this build.
    #[error(
        "this build has no tokenizer of GPT-2: build with `--features tiktoken`, or name its tokenizer.json file"
    )]
    NotBuilt,
    /// The tokenizer lacks the token after a document.
    #[error("{0}")]
    EndOfText(String),
    /// A model of tokens is given bytes.
    #[error(
        "the model was trained on tokens, not on bytes: make tokens of the text first, with `chimera prepare \
         --tokenizer …`"
    )]
    OnlyBytes,
    /// A model is given the ids of another tokenizer.
    #[error(
        "the data is of another tokenizer than the model: id {id} is {of_data:?} in the data and {of_model:?} for the \
         model: prepare the data with the model's tokenizer, `chimera prepare --tokenizer {name}`"
    )]
    Other {
        /// The first id that stands for two texts.
        id: u32,
        /// What it stands for in the data.
        of_data: String,
        /// What it stands for in the model.
        of_model: String,
        /// The tokenizer of the model.
        name: &'static str,
    },
    /// The tokenizer cannot express a text.
    #[error("the tokenizer cannot encode this text: {0}")]
    Encode(String),
    /// The tokenizer cannot make a text of ids.
    #[error("the tokenizer cannot make a text of these ids: {0}")]
    Decode(String),
}

/// A way to cut text into tokens.
#[derive(Clone, Debug)]
pub enum Tokenizer {
    /// Each byte of UTF-8 is an id.
    Bytes,
    /// GPT-2's byte-pair encoding (Radford et al., 2019), whose vocabulary is built in.
    Gpt2,
    /// What a `tokenizer.json` of Hugging Face's `tokenizers` says.
    File(FileTokenizer),
}

impl Tokenizer {
    /// The tokenizer of this name: `bytes`, `gpt2`, or the path of a file that ends in `.json`.
    pub fn named(name: &str) -> Result<Tokenizer, TokenizerError> {
        match name {
            "bytes" => Ok(Tokenizer::Bytes),
            "gpt2" => Ok(Tokenizer::Gpt2),
            path if path.ends_with(".json") => Tokenizer::read(Path::new(path)),
            _ => Err(TokenizerError::Unknown(name.to_string())),
        }
    }

    /// Reads a `tokenizer.json`.
    pub fn read(path: &Path) -> Result<Tokenizer, TokenizerError> {
        let bytes = read_content(path)?;
        let malformed = |reason| malformed(path, reason);
        let tokenizer = Tokenizer::File(FileTokenizer::parse(&bytes).map_err(malformed)?);
        match tokenizer.vocab() {
            0 => Err(malformed("its vocabulary is empty".into())),
            n if n > MAX_VOCAB => Err(malformed(format!("it has ids of {MAX_VOCAB} and above"))),
            _ => Ok(tokenizer),
        }
    }

    /// What the `tokenizer.json` held when it was read, if it is one.
    pub fn content(&self) -> Option<&[u8]> {
        match self {
            Tokenizer::Bytes | Tokenizer::Gpt2 => None,
            Tokenizer::File(tokenizer) => Some(tokenizer.content()),
        }
    }

    /// The usual tokenizer of so many ids.
    pub fn of_vocab(vocab: usize) -> Option<Tokenizer> {
        [Tokenizer::Bytes, Tokenizer::Gpt2].into_iter().find(|usual| usual.vocab() == vocab)
    }

    /// Number of ids: all that [`encode`](Tokenizer::encode) gives are below.
    pub fn vocab(&self) -> usize {
        match self {
            Tokenizer::Bytes => 256,
            Tokenizer::Gpt2 => 50_257,
            Tokenizer::File(tokenizer) => tokenizer.vocab(),
        }
    }

    /// Refuses `data` for a model of this tokenizer if an id that both have stands for different texts.
    ///
    /// # Errors
    /// [`TokenizerError::OnlyBytes`] or [`TokenizerError::Other`].
    pub fn check_data(&self, data: &Tokenizer) -> Result<(), TokenizerError> {
        let alike = match (self, data) {
            (Tokenizer::Bytes, Tokenizer::Bytes) | (Tokenizer::Gpt2, Tokenizer::Gpt2) => true,
            // What GPT-2's ids stand for is then unknown.
            (Tokenizer::Gpt2, _) | (_, Tokenizer::Gpt2) => !cfg!(feature = "tiktoken"),
            _ => false,
        };
        if alike {
            return Ok(());
        }
        let mut differs = None;
        for id in 0..self.vocab().min(data.vocab()) as u32 {
            // Not all ids below the highest need be there.
            let has = |tokenizer: &Tokenizer| match tokenizer {
                Tokenizer::File(file) => file.token_of(id).is_some(),
                Tokenizer::Bytes | Tokenizer::Gpt2 => true,
            };
            if !has(self) || !has(data) {
                continue;
            }
            let (of_model, of_data) = match (self, data) {
                (Tokenizer::File(ours), Tokenizer::File(theirs)) => {
                    (ours.token_of(id).unwrap_or_default(), theirs.token_of(id).unwrap_or_default())
                }
                _ => (self.decode(&[id])?, data.decode(&[id])?),
            };
            if of_model != of_data {
                differs = Some((id, of_data, of_model));
                break;
            }
        }
        let Some((id, of_data, of_model)) = differs else { return Ok(()) };
        let name = match (self, data) {
            (_, Tokenizer::Bytes) => return Err(TokenizerError::OnlyBytes),
            (Tokenizer::Bytes, _) => "bytes",
            (Tokenizer::Gpt2, _) => "gpt2",
            (Tokenizer::File(_), _) => TOKENIZER,
        };
        Err(TokenizerError::Other { id, of_data, of_model, name })
    }

    /// The id of a token that stands for no text, such as `[MASK]`, if there is one.
    pub fn special(&self, token: &str) -> Option<u32> {
        match self {
            Tokenizer::Bytes | Tokenizer::Gpt2 => None,
            Tokenizer::File(tokenizer) => tokenizer.id_of(token),
        }
    }

    /// The id of the token after a document: that of `token` if one is named, else the usual one, which is byte 0 where
    /// bytes are tokens.
    pub fn end_of_text(&self, token: Option<&str>) -> Result<u32, TokenizerError> {
        let refuse = |message| Err(TokenizerError::EndOfText(message));
        match (self, token) {
            (Tokenizer::Bytes, None) => Ok(0),
            (Tokenizer::Bytes, Some(token)) => refuse(format!(
                "where bytes are tokens, byte 0 ends a document: leave the end-of-text `{token}` out"
            )),
            (Tokenizer::Gpt2, None | Some(END_OF_TEXT)) => Ok(50_256),
            (Tokenizer::Gpt2, Some(token)) => {
                refuse(format!("gpt2 has no token `{token}`: its end-of-text is `{END_OF_TEXT}`"))
            }
            (Tokenizer::File(tokenizer), Some(token)) => match tokenizer.id_of(token) {
                Some(id) => Ok(id),
                None => {
                    refuse(format!("the tokenizer has no token `{token}` for the end of a text"))
                }
            },
            (Tokenizer::File(tokenizer), None) => {
                match ENDS.iter().find_map(|token| tokenizer.id_of(token)) {
                    Some(id) => Ok(id),
                    None => refuse(format!(
                        "the tokenizer has none of {} to end a document: name its token with --end-of-text",
                        ENDS.join(", ")
                    )),
                }
            }
        }
    }

    /// The ids of a text. Markers such as `<|endoftext|>` are not added; in the text they are read as
    /// text, or as the file has it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        match self {
            Tokenizer::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Tokenizer::Gpt2 => gpt2::encode(text),
            Tokenizer::File(tokenizer) => tokenizer.encode(text),
        }
    }

    /// The ids that stand before a text alone, as its begin-of-text token, where the tokenizer's file says so.
    ///
    /// # Errors
    /// If the file does not say it soundly.
    pub fn beginning(&self) -> Result<Vec<u32>, TokenizerError> {
        let Tokenizer::File(tokenizer) = self else { return Ok(Vec::new()) };
        let ids = tokenizer.beginning()?;
        match ids.iter().find(|id| **id as usize >= self.vocab()) {
            Some(id) => {
                let reason =
                    format!("its tokenizer.json begins a text with id {id}, which it lacks");
                Err(TokenizerError::Encode(reason))
            }
            None => Ok(ids),
        }
    }

    /// Cuts a text from byte `start` on into [pieces] that together [have its ids](Tokenizer::encode_piece), unless 64 KiB have
    /// no place where tokens part.
    ///
    /// Every piece but the last is the same whatever follows the text.
    pub fn pieces<'t>(
        &'t self,
        text: &'t str,
        start: usize,
    ) -> Box<dyn Iterator<Item = TextPiece<'t>> + 't> {
        match self {
            Tokenizer::File(tokenizer) => {
                let parts = |text: &str, at| matches!(tokenizer.encode_from(text, at), Ok(Some(_)));
                Box::new(pieces_around(text, start, tokenizer.whole(), parts))
            }
            Tokenizer::Bytes | Tokenizer::Gpt2 => {
                Box::new(pieces_around(text, start, &[], |_, _| true))
            }
        }
    }

    /// The ids of one of the [pieces](Tokenizer::pieces) of a text. What the tokenizer puts before a text, as the `▁` of
    /// Llama's, is only in the first.
    pub fn encode_piece(&self, piece: TextPiece) -> Result<Vec<u32>, TokenizerError> {
        if let Tokenizer::File(tokenizer) = self {
            let (text, start) = piece.with_before();
            if let Some(ids) = tokenizer.encode_from(text, start)? {
                return Ok(ids);
            }
        }
        self.encode(piece.text())
    }

    /// The text of ids. What is no UTF-8 becomes `�`, and ids that are not in the vocabulary are left out.
    ///
    /// # Errors
    /// [`TokenizerError::Decode`] if the tokenizer's file is inconsistent.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        match (self.bytes(ids), self) {
            (Some(bytes), _) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            (None, Tokenizer::File(tokenizer)) => tokenizer.decode(ids),
            (None, _) => Ok(String::new()),
        }
    }

    /// The bytes of ids, one after another, where each stands for some whatever is beside it.
    fn bytes(&self, ids: &[u32]) -> Option<Vec<u8>> {
        match self {
            Tokenizer::Bytes => Some(ids.iter().filter_map(|id| u8::try_from(*id).ok()).collect()),
            Tokenizer::Gpt2 => Some(gpt2::bytes(ids)),
            Tokenizer::File(_) => None,
        }
    }
}

/// Writes `content` as the `tokenizer.json` of the model in `dir`.
///
/// # Errors
/// A [`Fault`], with the file.
pub fn write_tokenizer(dir: &Path, content: &[u8]) -> Result<(), Fault> {
    publish(&dir.join(TOKENIZER), content)
}

/// The content of a `tokenizer.json`, to be copied as it is. It is parsed first, so that no other file is copied.
///
/// # Errors
/// If the file cannot be read, is too large, or is not a tokenizer.
pub fn tokenizer_content(path: &Path) -> Result<Vec<u8>, TokenizerError> {
    let content = read_content(path)?;
    FileTokenizer::check(&content).map_err(|reason| malformed(path, reason))?;
    Ok(content)
}

fn read_content(path: &Path) -> Result<Vec<u8>, TokenizerError> {
    let path = path.to_path_buf();
    match read_regular(&path, MAX_BYTES) {
        Err(reason) => Err(TokenizerError::Unreadable { path, reason }),
        Ok(None) => Err(TokenizerError::Large { path }),
        Ok(Some(content)) => Ok(content),
    }
}

fn malformed(path: &Path, reason: String) -> TokenizerError {
    TokenizerError::Malformed { path: path.to_path_buf(), reason }
}

/// Writes a `tokenizer.json`.
///
/// # Errors
/// A [`Fault`], with the file that cannot be written.
pub(crate) fn publish(path: &Path, content: &[u8]) -> Result<(), Fault> {
    files::write(path, content).map_err(|e| files::io_fault("tokenizer", path, &e))
}

#[cfg(test)]
mod tests;
