//! The description of a file of token ids: its tokenizer and its sources.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use chimera_formats::files::disk::with_ending;
use chimera_formats::files::{read_regular, text_regular};
use serde::{Deserialize, Serialize};

use crate::data::DataError;
use crate::data::tokenizer;
use crate::data::tokenizer::Tokenizer;
use crate::data::width::Width;

/// The latest format; later ones are refused. Data in which every token is a target has format 1.
const FORMAT: u32 = 2;
/// Larger files are refused before they are read, and not written.
pub(crate) const MAX_BYTES: u64 = 16 << 20;

/// The description of prepared data: `data.bin.json` for `data.bin`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Prepared {
    /// Version of this format.
    format: u32,
    /// The tokenizer.
    pub tokenizer: TokenizerKind,
    /// Vocabulary size of the tokenizer.
    pub vocab: usize,
    /// Number of tokens in the data.
    pub tokens: u64,
    /// The ends of documents, if they are kept apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_of_text: Option<Ends>,
    /// Number of tokens that are targets, if `data.bin.targets` marks them: a byte for each token,
    /// 1 or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<u64>,
    /// The texts as they were named, in order.
    pub sources: Vec<Source>,
}

/// The ends of documents.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Ends {
    /// The id after each document.
    pub token: u32,
    /// Number of documents.
    pub documents: u64,
}

/// A tokenizer, in the notation of prepared data.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerKind {
    /// Each byte is a token.
    Bytes,
    /// GPT-2's tokenizer.
    Gpt2,
    /// The `tokenizer.json` copied to `data.bin.tokenizer.json`.
    File,
}

/// A text or a folder of texts that the data was made from.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Source {
    /// The file or folder, as it was named.
    pub path: String,
    /// Bytes encoded: of a folder, the sum over its texts; of JSONL, only the bytes of  the fields.
    pub bytes: u64,
}

/// Returns the tokenizer of `files`, as far as their names and descriptions show it. Does not read
/// the files themselves.
pub fn tokenizer_of(files: &[PathBuf]) -> Result<Option<Tokenizer>, DataError> {
    match Prepared::of(files)? {
        Some((data, prepared)) => Ok(Some(prepared.tokenizer(data)?)),
        None => {
            let is_text = files.iter().all(|file| Width::of(file) == Width::U8);
            Ok(is_text.then_some(Tokenizer::Bytes))
        }
    }
}

/// Returns the `tokenizer.json` that `files` were prepared with, if it was one.
pub fn tokenizer_file_of(files: &[PathBuf]) -> Result<Option<PathBuf>, DataError> {
    let prepared = Prepared::of(files)?;
    let file = prepared.filter(|(_, prepared)| prepared.tokenizer == TokenizerKind::File);
    Ok(file.map(|(data, _)| tokenizer_beside(data)))
}

/// Returns the files that mark which tokens of `files` are targets, if not all are.
pub(crate) fn target_files(files: &[PathBuf]) -> Result<Option<Vec<PathBuf>>, DataError> {
    let mut known = Vec::new();
    for path in files {
        let is_prepared = Width::of(path) != Width::U8;
        let prepared = if is_prepared { Prepared::beside(path)? } else { None };
        if prepared.is_some_and(|prepared| prepared.targets.is_some()) {
            known.push(targets_beside(path));
        }
    }
    match files.iter().find(|path| !known.contains(&targets_beside(path))) {
        Some(path) if !known.is_empty() => {
            let reason =
                "all of its tokens are targets, but not all of the other data: prepare them alike";
            Err(DataError::Prepared { path: beside(path), reason: reason.into() })
        }
        _ => Ok((!known.is_empty()).then_some(known)),
    }
}

/// Returns the token after each document of `files`.
///
/// # Errors
/// If the documents are not kept apart, or not all by the same token.
pub fn end_of_text(files: &[PathBuf]) -> Result<u32, DataError> {
    let mut common = None;
    for path in files {
        let refuse =
            |reason: &str| DataError::Prepared { path: path.clone(), reason: reason.into() };
        let Some(token) = end_in(path)? else {
            let unreadable = |reason| DataError::Unreadable { path: path.clone(), reason };
            if Width::of(path) != Width::U8 {
                path.metadata().map_err(unreadable)?; // a text has no end, even if it exists
            }
            let reason = "no token ends its documents, which document-mask needs: prepare it from folders or .jsonl \
                          files, or with `chimera prepare --end-of-text`";
            return Err(refuse(reason));
        };
        if *common.get_or_insert(token) != token {
            return Err(refuse(
                "its documents end with another token than those before: prepare them alike",
            ));
        }
    }
    common.ok_or_else(|| {
        let (path, reason) =
            ("the built-in text".into(), "it is one document: leave document-mask out".into());
        DataError::Prepared { path, reason }
    })
}

/// Returns the token after each document of `files`, if every file keeps its documents apart, by
/// the same token.
pub(crate) fn document_end(files: &[PathBuf]) -> Result<Option<u32>, DataError> {
    let ends = files.iter().map(|path| end_in(path)).collect::<Result<Vec<_>, _>>()?;
    let first = ends.first().copied().flatten();
    Ok(first.filter(|_| ends.iter().all(|end| *end == first)))
}

/// Returns the token after each document of a file, if it keeps its documents apart.
fn end_in(path: &Path) -> Result<Option<u32>, DataError> {
    let is_prepared = Width::of(path) != Width::U8;
    let prepared = if is_prepared { Prepared::beside(path)? } else { None };
    Ok(prepared.and_then(|prepared| prepared.end_of_text).map(|ends| ends.token))
}

/// Returns the first of `files` that should have token ids but does not exist.
pub fn missing_ids(files: &[PathBuf]) -> Option<&Path> {
    let missing = files.iter().find(|file| Width::of(file) != Width::U8 && !file.exists());
    missing.map(PathBuf::as_path)
}

impl Prepared {
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        tokens: u64,
        end_of_text: Option<Ends>,
        targets: Option<u64>,
        sources: Vec<Source>,
    ) -> Prepared {
        let vocab = tokenizer.vocab();
        let tokenizer = match tokenizer {
            Tokenizer::Bytes => TokenizerKind::Bytes,
            Tokenizer::Gpt2 => TokenizerKind::Gpt2,
            Tokenizer::File(_) => TokenizerKind::File,
        };
        let format = if targets.is_some() { FORMAT } else { 1 };
        Prepared { format, tokenizer, vocab, tokens, end_of_text, targets, sources }
    }

    /// Returns the description that the data files share, with the first file that has one.
    pub fn of(files: &[PathBuf]) -> Result<Option<(&Path, Prepared)>, DataError> {
        let mut common: Option<(&Path, Prepared)> = None;
        for path in files.iter().filter(|path| Width::of(path) != Width::U8) {
            let Some(prepared) = Prepared::beside(path)? else { continue };
            match &common {
                None => common = Some((path, prepared)),
                Some((first, other)) => {
                    let is_file = prepared.tokenizer == TokenizerKind::File;
                    if is_file && !same_content(&tokenizer_beside(first), &tokenizer_beside(path)) {
                        let reason = format!(
                            "its tokenizer.json is not that of {}: prepare them alike",
                            first.display()
                        );
                        return Err(DataError::Prepared { path: beside(path), reason });
                    }
                    if (prepared.tokenizer, prepared.vocab) != (other.tokenizer, other.vocab) {
                        let describe = |p: &Prepared| format!("{} ({} ids)", p.name(), p.vocab);
                        let reason = format!(
                            "its tokenizer is {}, but that of {} is {}: prepare them alike",
                            describe(&prepared),
                            first.display(),
                            describe(other)
                        );
                        return Err(DataError::Prepared { path: beside(path), reason });
                    }
                }
            }
        }
        Ok(common)
    }

    /// Reads the description of a data file, if there is one.
    fn beside(data: &Path) -> Result<Option<Prepared>, DataError> {
        let path = beside(data);
        let refuse = |reason: String| DataError::Prepared { path: path.clone(), reason };
        let text = match text_regular(&path, MAX_BYTES) {
            Ok(Some(text)) => text,
            Ok(None) => return Err(refuse(format!("it is larger than {MAX_BYTES} bytes"))),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) if e.kind() == ErrorKind::InvalidData => return Err(refuse(e.to_string())),
            Err(reason) => return Err(DataError::Unreadable { path, reason }),
        };
        /// The fields that every version of the format has.
        #[derive(Deserialize)]
        struct Versioned {
            format: u32,
        }
        let Versioned { format } =
            serde_json::from_str(&text).map_err(|e| refuse(e.to_string()))?;
        if format > FORMAT {
            return Err(refuse(format!(
                "format {format} needs a later chimera; this one reads {FORMAT}"
            )));
        }
        let prepared: Prepared = serde_json::from_str(&text).map_err(|e| refuse(e.to_string()))?;
        if !(1..=1 << 24).contains(&prepared.vocab) {
            return Err(refuse(format!("a vocabulary of {} ids", prepared.vocab)));
        }
        let end = prepared.end_of_text.as_ref().map(|ends| ends.token);
        if let Some(token) = end.filter(|token| *token as usize >= prepared.vocab) {
            return Err(refuse(format!(
                "token {token} ends documents, but the vocabulary has {} ids",
                prepared.vocab
            )));
        }
        let bytes = prepared.tokens.checked_mul(Width::of(data).bytes() as u64);
        match data.metadata() {
            Ok(metadata) if Some(metadata.len()) != bytes => Err(refuse(format!(
                "it describes {} tokens, but the data has {} bytes: prepare it again",
                prepared.tokens,
                metadata.len()
            ))),
            _ => Ok(Some(prepared)), // its reader checks whether the data can be read
        }
    }

    /// Returns the tokenizer of `data`, the file that this describes.
    pub fn tokenizer(&self, data: &Path) -> Result<Tokenizer, DataError> {
        let tokenizer = match self.tokenizer {
            TokenizerKind::Bytes => Tokenizer::Bytes,
            TokenizerKind::Gpt2 => Tokenizer::Gpt2,
            TokenizerKind::File => Tokenizer::read(&tokenizer_beside(data))?,
        };
        if tokenizer.vocab() != self.vocab {
            let reason = format!(
                "it describes {} ids, but the tokenizer has {}: prepare the data again",
                self.vocab,
                tokenizer.vocab()
            );
            return Err(DataError::Prepared { path: beside(data), reason });
        }
        Ok(tokenizer)
    }

    /// The text of the description file.
    pub(crate) fn text(&self) -> serde_json::Result<String> {
        Ok(format!("{}\n", serde_json::to_string_pretty(self)?))
    }

    /// Names the tokenizer.
    pub fn name(&self) -> &'static str {
        match self.tokenizer {
            TokenizerKind::Bytes => "bytes",
            TokenizerKind::Gpt2 => "gpt2",
            TokenizerKind::File => "a tokenizer.json",
        }
    }
}

/// Returns true if a file has token ids with a description.
pub(crate) fn is_prepared(data: &Path) -> bool {
    Width::of(data) != Width::U8 && beside(data).exists()
}

/// Returns true if a file is a description of any data.
pub(crate) fn is_description(path: &Path) -> bool {
    let text = text_regular(path, MAX_BYTES).ok().flatten();
    text.is_some_and(|text| serde_json::from_str::<Prepared>(&text).is_ok())
}

/// The path of the description of a data file.
pub(crate) fn beside(data: &Path) -> PathBuf {
    with_ending(data, ".json")
}

/// Returns true if two files can be read and have the same content.
fn same_content(one: &Path, other: &Path) -> bool {
    let read = |path: &Path| read_regular(path, tokenizer::MAX_BYTES).ok().flatten();
    read(one).is_some_and(|content| read(other) == Some(content))
}

/// The path of the file that marks the targets, if not all tokens are.
pub(crate) fn targets_beside(data: &Path) -> PathBuf {
    with_ending(data, ".targets")
}

/// The path of the copied tokenizer, if it was a file.
pub(crate) fn tokenizer_beside(data: &Path) -> PathBuf {
    with_ending(data, ".tokenizer.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_that_is_too_long_is_said_to_be() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data.bin");
        std::fs::File::create(beside(&data)).unwrap().set_len(MAX_BYTES + 1).unwrap();
        let refusal = Prepared::of(&[data]).unwrap_err().to_string();
        assert!(refusal.ends_with("data.bin.json: it is larger than 16777216 bytes"), "{refusal}");
    }
}
