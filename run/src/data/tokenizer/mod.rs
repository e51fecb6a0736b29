//! Tokenizers: from text to token ids and back.

mod byte_level;
#[cfg_attr(not(feature = "tokenizers"), path = "no_file.rs")]
mod file;
#[cfg_attr(not(feature = "tiktoken"), path = "no_gpt2.rs")]
mod gpt2;
mod pieces;
mod spans;
mod stream;

use std::path::{Path, PathBuf};

use chimera_core::fault::Fault;

pub use file::FileTokenizer;
use pieces::pieces_around;
pub use pieces::{TextPiece, pieces};
pub use stream::Stream;

use chimera_formats::files::{self, read_regular};

/// File with the tokenizer in the folder of a model.
pub const TOKENIZER: &str = "tokenizer.json";

/// Larger `tokenizer.json` files are refused before they are read.
pub const MAX_BYTES: u64 = 128 << 20;
/// The largest vocabulary, as for the setting `vocab`.
const MAX_VOCAB: usize = 1 << 24;

/// The token after a text of GPT-2.
const END_OF_TEXT: &str = "<|endoftext|>";
/// The token after a text in other tokenizers; the first of these that exists is used.
const ENDS: [&str; 6] =
    [END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|end▁of▁sentence|>", "[SEP]"];

/// A reason why a tokenizer cannot be used (exit code 2).
#[derive(thiserror::Error, Debug)]
pub enum TokenizerError {
    /// Neither a known name nor a file.
    #[error("unknown tokenizer `{0}`: choose bytes, gpt2 or a tokenizer.json file")]
    Unknown(String),
    /// The file system cannot read the file.
    #[error("cannot read tokenizer {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: std::io::Error,
    },
    /// The file is too large for a tokenizer.
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
        /// The message of the reader.
        reason: String,
    },
    /// The vocabulary of GPT-2 is not in this build.
    #[error(
        "this build has no tokenizer of GPT-2: build with `--features tiktoken`, or name its tokenizer.json file"
    )]
    NotBuilt,
    /// The tokenizer has no token to end a document.
    #[error("{0}")]
    EndOfText(String),
    /// The data has bytes, but the model was trained on tokens.
    #[error(
        "the model was trained on tokens, not on bytes: convert the text to tokens first, with \
         `chimera prepare --tokenizer …`"
    )]
    OnlyBytes,
    /// The data has ids of another tokenizer than the model's.
    #[error(
        "the data is of another tokenizer than the model: id {id} is {of_data:?} in the data and {of_model:?} for the \
         model: prepare the data with the model's tokenizer, `chimera prepare --tokenizer {name}`"
    )]
    Other {
        /// The first id that stands for different texts.
        id: u32,
        /// Text of the id in the data.
        of_data: String,
        /// Text of the id in the model.
        of_model: String,
        /// The tokenizer of the model.
        name: &'static str,
    },
    /// The tokenizer cannot encode a text.
    #[error("the tokenizer cannot encode this text: {0}")]
    Encode(String),
    /// The tokenizer cannot decode ids.
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
    /// The tokenizer in a `tokenizer.json` of Hugging Face's `tokenizers`.
    File(FileTokenizer),
}

impl Tokenizer {
    /// Returns the tokenizer with this name: `bytes`, `gpt2`, or the path of a file that ends in
    /// `.json`.
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

    /// The content of the `tokenizer.json` when it was read, if it came from one.
    pub fn content(&self) -> Option<&[u8]> {
        match self {
            Tokenizer::Bytes | Tokenizer::Gpt2 => None,
            Tokenizer::File(tokenizer) => Some(tokenizer.content()),
        }
    }

    /// Returns a `tokenizer.json` for it: its own, or one with the same ids; `None` if this build
    /// lacks the vocabulary of GPT-2.
    pub fn to_json(&self) -> Option<Vec<u8>> {
        match self {
            Tokenizer::File(tokenizer) => Some(tokenizer.content().to_vec()),
            Tokenizer::Bytes => {
                let bytes: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
                Some(byte_level::tokenizer_json(&bytes, None).into_bytes())
            }
            Tokenizer::Gpt2 if !cfg!(feature = "tiktoken") => None,
            Tokenizer::Gpt2 => {
                let end = self.vocab() as u32 - 1; // the token after a text
                let tokens: Vec<Vec<u8>> = (0..end).map(|id| gpt2::bytes(&[id])).collect();
                Some(byte_level::tokenizer_json(&tokens, Some(END_OF_TEXT)).into_bytes())
            }
        }
    }

    /// Returns the usual tokenizer with `vocab` ids.
    pub fn of_vocab(vocab: usize) -> Option<Tokenizer> {
        [Tokenizer::Bytes, Tokenizer::Gpt2].into_iter().find(|usual| usual.vocab() == vocab)
    }

    /// Vocabulary size: all ids that [`encode`](Tokenizer::encode) returns are below it.
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
            // The texts of GPT-2's ids are then unknown.
            (Tokenizer::Gpt2, _) | (_, Tokenizer::Gpt2) => !cfg!(feature = "tiktoken"),
            _ => false,
        };
        if alike {
            return Ok(());
        }
        let mut differs = None;
        for id in 0..self.vocab().min(data.vocab()) as u32 {
            // Some ids below the highest may be missing.
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

    /// Returns the id of a token that stands for no text, such as `[MASK]`, if there is one.
    pub fn special(&self, token: &str) -> Option<u32> {
        match self {
            Tokenizer::Bytes | Tokenizer::Gpt2 => None,
            Tokenizer::File(tokenizer) => tokenizer.id_of(token),
        }
    }

    /// Returns the id of the token after a document: `token` if one is named, otherwise the usual
    /// one. Where bytes are tokens, that is byte 0.
    pub fn end_of_text(&self, token: Option<&str>) -> Result<u32, TokenizerError> {
        let refuse = |message| Err(TokenizerError::EndOfText(message));
        match (self, token) {
            (Tokenizer::Bytes, None) => Ok(0),
            (Tokenizer::Bytes, Some(token)) => refuse(format!(
                "if bytes are tokens, byte 0 ends a document: leave the end-of-text `{token}` out"
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

    /// Returns the ids of a text. Markers such as `<|endoftext|>` are not added. If they occur in
    /// the text they are read as text, unless the tokenizer's file says otherwise.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        match self {
            Tokenizer::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Tokenizer::Gpt2 => gpt2::encode(text),
            Tokenizer::File(tokenizer) => tokenizer.encode(text),
        }
    }

    /// Returns the ids that the tokenizer's file puts before a single text, such as its
    /// begin-of-text token.
    ///
    /// # Errors
    /// If the file is inconsistent.
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

    /// Cuts a text from byte `start` on into [pieces] that together [have its
    /// ids](Tokenizer::encode_piece), unless there are 64 KiB without a boundary between tokens.
    ///
    /// All pieces but the last stay the same, whatever is appended to the text.
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

    /// Returns the ids of one of the [pieces](Tokenizer::pieces) of a text. A prefix that the
    /// tokenizer adds to a text, such as the `▁` of Llama's, is only in the first piece.
    pub fn encode_piece(&self, piece: TextPiece) -> Result<Vec<u32>, TokenizerError> {
        if let Tokenizer::File(tokenizer) = self {
            let (text, start) = piece.with_before();
            if let Some(ids) = tokenizer.encode_from(text, start)? {
                return Ok(ids);
            }
        }
        self.encode(piece.text())
    }

    /// Returns the text of ids. Invalid UTF-8 becomes `�`, and ids that are not in the vocabulary
    /// are left out.
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

    /// Returns the bytes of ids, one after another, if the bytes of each do not depend on its
    /// neighbours.
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

/// Returns the content of a `tokenizer.json`, for copying it unchanged. It is parsed first, so that
/// no other file is copied.
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
