//! From text to token ids and back.

#[cfg_attr(not(feature = "tokenizers"), path = "no_file.rs")]
mod file;
#[cfg_attr(not(feature = "tiktoken"), path = "no_gpt2.rs")]
mod gpt2;
mod pieces;
mod stream;

use std::io::Error;
use std::path::{Path, PathBuf};

use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;

pub use file::FileTokenizer;
pub use pieces::pieces;
use pieces::pieces_around;
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
        let path = path.to_path_buf();
        let bytes = match read_regular(&path, MAX_BYTES) {
            Err(reason) => return Err(TokenizerError::Unreadable { path, reason }),
            Ok(None) => return Err(TokenizerError::Large { path }),
            Ok(Some(bytes)) => bytes,
        };
        let malformed = |reason: String| TokenizerError::Malformed { path: path.clone(), reason };
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

    /// Cuts a text into [pieces] that together have its ids: none tears a token that the tokenizer's file adds as a whole.
    pub fn pieces<'t>(&'t self, text: &'t str) -> Box<dyn Iterator<Item = &'t str> + 't> {
        match self {
            Tokenizer::File(tokenizer) => Box::new(pieces_around(text, tokenizer.whole())),
            Tokenizer::Bytes | Tokenizer::Gpt2 => Box::new(pieces(text)),
        }
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

/// What a `tokenizer.json` holds, whether it is one or not.
///
/// # Errors
/// A [`Fault`], with the file.
pub fn tokenizer_content(from: &Path) -> Result<Vec<u8>, Fault> {
    let read = read_regular(from, MAX_BYTES).and_then(|content| {
        let too_large = || Error::other(format!("it is larger than {MAX_BYTES} bytes"));
        content.ok_or_else(too_large)
    });
    read.map_err(|e| {
        let message = format!("cannot read tokenizer {}: {e}", from.display());
        Fault::new(Class::Io, Rank(0), message)
    })
}

/// Copies a `tokenizer.json`.
///
/// # Errors
/// A [`Fault`], with the file that cannot be read or written.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), Fault> {
    publish(to, &tokenizer_content(from)?)
}

fn publish(path: &Path, content: &[u8]) -> Result<(), Fault> {
    files::write(path, content).map_err(|e| files::io_fault("tokenizer", path, &e))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    /// A tokenizer of words, `[UNK]` for others.
    pub(crate) const WORDS: &str = r#"{
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 2,
        "strategy": "LongestFirst", "stride": 0}, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": null, "model": {"type": "WordLevel", "unk_token": "[UNK]",
        "vocab": {"[UNK]": 0, "pipe": 1, "stage": 2, "worker": 7}}}"#;

    fn read(content: &[u8]) -> Result<Tokenizer, String> {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("tokenizer.json");
        fs::write(&path, content).unwrap();
        let place = format!("{}/", folder.path().display());
        Tokenizer::read(&path).map_err(|e| e.to_string().replace(&place, ""))
    }

    #[test]
    fn ids_of_gpt2() {
        // As OpenAI's encoder has them.
        let ids = Tokenizer::Gpt2.encode("Hello world").unwrap();
        assert_eq!(ids, [15496, 995]);
        assert_eq!(Tokenizer::Gpt2.decode(&[50256, 60_000, 995]).unwrap(), "<|endoftext|> world");
        assert_eq!(Tokenizer::Gpt2.encode("<|endoftext|>").unwrap().len(), 7);
    }

    #[test]
    fn a_file_says_what_is_a_token() {
        let words = read(WORDS.as_bytes()).unwrap();
        assert_eq!(words.vocab(), 8);
        assert_eq!(words.encode("pipe stage, worker").unwrap(), [1, 2, 0, 7]);
        assert_eq!(words.decode(&[2, 5, 1]).unwrap(), "stage pipe");
    }

    #[test]
    fn hostile_files_are_refused() {
        let wide = WORDS.replace("7}", "4294967295}");
        let nested =
            |key: &str| format!("{{\"{key}\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let no_json = WORDS.replace("\"decoder\": null", "\"decoder\": Null");
        for (content, hint) in [
            ("", "tokenizer.json is no tokenizer.json: EOF"),
            ("{}", "is no tokenizer.json: "),
            (&WORDS[..200], "is no tokenizer.json: EOF"),
            (&wide, "it has ids of 16777216 and above"),
            (&nested("model"), "recursion limit"),
            (&nested("decoder"), "it is inconsistent"),
            (&no_json, "expected value"),
            ("{\"version\": \"1.0\", \"model\": {}}", "is no tokenizer.json: "),
        ] {
            let refusal = read(content.as_bytes()).unwrap_err();
            assert!(refusal.contains(hint) && refusal.len() < 400, "{hint}: {refusal}");
        }
        let empty = WORDS.replace(r#"{"[UNK]": 0, "pipe": 1, "stage": 2, "worker": 7}"#, "{}");
        assert!(read(empty.as_bytes()).is_err());
        assert!(Tokenizer::named("gpt3").unwrap_err().to_string().contains("choose bytes, gpt2"));
        assert!(Tokenizer::named("none.json").unwrap_err().to_string().contains("No such file"));
        let sparse = tempfile::TempDir::new().unwrap();
        let path = sparse.path().join("tokenizer.json");
        if fs::File::create(&path).unwrap().set_len(1 << 40).is_ok() {
            assert!(Tokenizer::read(&path).unwrap_err().to_string().contains("is larger than"));
        }
    }

    /// The library panics on a token that is shorter than what is to be taken from its ends.
    #[test]
    fn a_file_that_cannot_be_decoded_is_refused() {
        let strip = r#"{"type": "Strip", "content": "e", "start": 0, "stop": 9}"#;
        let file = WORDS.replace("\"pipe\"", "\"e\"");
        let words =
            read(file.replace("\"decoder\": null", &format!("\"decoder\": {strip}")).as_bytes());
        let words = words.unwrap();
        let refusal = words.decode(&[1]).unwrap_err().to_string();
        assert!(refusal.ends_with("its tokenizer.json is inconsistent"), "{refusal}");
        assert!(Stream::new(&words).push(&[1]).is_err());
        assert_eq!(words.encode("e").unwrap(), [1]);
    }

    #[test]
    fn a_text_begins_as_the_template_says() {
        let template = |begins: u32| {
            let piece =
                |name: &str| format!(r#"{{"SpecialToken": {{"id": "{name}", "type_id": 0}}}}"#);
            let text = r#"{"Sequence": {"id": "A", "type_id": 0}}"#;
            let other = text.replace('A', "B");
            let special = |name: &str, id: u32| {
                format!(r#""{name}": {{"id": "{name}", "ids": [{id}], "tokens": ["{name}"]}}"#)
            };
            let template = format!(
                r#"{{"type": "TemplateProcessing", "single": [{}, {text}, {}], "pair": [{text}, {other}],
                "special_tokens": {{{}, {}}}}}"#,
                piece("pipe"),
                piece("stage"),
                special("pipe", begins),
                special("stage", 2),
            );
            let file = WORDS
                .replace("\"post_processor\": null", &format!("\"post_processor\": {template}"));
            read(file.as_bytes()).unwrap()
        };
        assert_eq!(template(1).beginning().unwrap(), [1], "what stands behind it does not count");
        assert_eq!(template(1).encode("worker").unwrap(), [7]);
        let refusal = template(8).beginning().unwrap_err().to_string();
        assert!(refusal.ends_with("begins a text with id 8, which it lacks"), "{refusal}");
        assert!(read(WORDS.as_bytes()).unwrap().beginning().unwrap().is_empty());
        assert!(Tokenizer::Gpt2.beginning().unwrap().is_empty());
    }

    /// A blank within a token is no place to cut, nor one that a token takes in.
    #[test]
    fn added_tokens_are_not_torn() {
        let added = |id: u32, content: &str, takes: &str| {
            format!(
                r#"{{"id": {id}, "content": "{content}", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": false}}"#
            )
            .replace(&format!("\"{takes}\": false"), &format!("\"{takes}\": true"))
        };
        let tokens =
            [added(8, "New York", ""), added(9, "[R]", "rstrip"), added(10, "[L]", "lstrip")];
        let file = WORDS
            .replace("\"added_tokens\": []", &format!("\"added_tokens\": [{}]", tokens.join(", ")))
            .replace(
                "{\"type\": \"Whitespace\"}",
                r#"{"type": "Metaspace", "replacement": "_", "prepend_scheme": "never"}"#,
            );
        let tokenizer = read(file.as_bytes()).unwrap();
        for line in ["New York ", "xxx\tNew York\t", "pipe [R] stage\t", "\tpipe\n[L]x"] {
            let text = line.repeat(200_000 / line.len());
            let pieces: Vec<&str> = tokenizer.pieces(&text).collect();
            assert!(pieces.concat() == text && pieces.len() > 2, "{line}");
            let ids: Vec<u32> =
                pieces.iter().flat_map(|piece| tokenizer.encode(piece).unwrap()).collect();
            let whole = tokenizer.encode(&text).unwrap();
            let of = |token: u32, ids: &[u32]| ids.iter().filter(|id| **id == token).count();
            for token in 8..11 {
                assert_eq!(of(token, &ids), of(token, &whole), "{line}: {token}");
            }
        }
    }

    /// GPT-2's own `tokenizer.json` has to pass for `gpt2`, and one with further tokens for what it was before.
    #[test]
    fn ids_that_stand_for_other_texts_are_refused() {
        let file = |content: String| read(content.as_bytes()).unwrap();
        let words = file(WORDS.into());
        let other = file(WORDS.replace("\"pipe\": 1", "\"idle\": 1"));
        let wider = file(WORDS.replace("\"worker\": 7", "\"worker\": 7, \"idle\": 8"));
        for (model, data) in [
            (&words, &words),
            (&words, &wider),
            (&wider, &words),
            (&Tokenizer::Bytes, &Tokenizer::Bytes),
            (&Tokenizer::Gpt2, &Tokenizer::Gpt2),
        ] {
            assert!(model.check_data(data).is_ok());
        }
        let ids = (0..50_257).map(|id| (Tokenizer::Gpt2.decode(&[id]).unwrap(), id));
        // What is no UTF-8 alone has the same name more than once.
        let ids: std::collections::BTreeMap<_, _> = ids.collect();
        let vocabulary = serde_json::to_string(&ids).unwrap();
        let was = r#"{"[UNK]": 0, "pipe": 1, "stage": 2, "worker": 7}"#;
        let gpt2 = file(WORDS.replace(was, &vocabulary).replace("[UNK]", "a"));
        assert!(Tokenizer::Gpt2.check_data(&gpt2).is_ok());
        assert!(gpt2.check_data(&Tokenizer::Gpt2).is_ok());

        let refusal = |model: &Tokenizer, data| model.check_data(data).unwrap_err().to_string();
        assert_eq!(
            refusal(&words, &other),
            "the data is of another tokenizer than the model: id 1 is \"idle\" in the data and \"pipe\" for the \
             model: prepare the data with the model's tokenizer, `chimera prepare --tokenizer tokenizer.json`"
        );
        assert!(refusal(&Tokenizer::Bytes, &words).ends_with("--tokenizer bytes`"));
        assert!(refusal(&Tokenizer::Bytes, &Tokenizer::Gpt2).contains("id 0 is \"!\" in the data"));
        assert!(refusal(&Tokenizer::Gpt2, &words).ends_with("--tokenizer gpt2`"));
        assert!(refusal(&gpt2, &Tokenizer::Bytes).starts_with("the model was trained on tokens"));
    }

    #[test]
    fn long_runs_are_encoded() {
        for text in [" ".repeat(3 << 20) + "x", "a".repeat(200_000), "\n".repeat(200_000)] {
            let ids = Tokenizer::Gpt2.encode(&text).unwrap();
            assert!(Tokenizer::Gpt2.decode(&ids).unwrap() == text);
        }
    }

    proptest! {
        #[test]
        fn text_comes_back(text in "\\PC*|(?s).*|[a-z \\n\\t]{0,400}") {
            for tokenizer in [Tokenizer::Bytes, Tokenizer::Gpt2] {
                let ids = tokenizer.encode(&text).unwrap();
                prop_assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab()));
                prop_assert_eq!(tokenizer.decode(&ids).unwrap(), text.clone());
            }
        }
    }
}
