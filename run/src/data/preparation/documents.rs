//! Collections of texts: the lines of a JSONL file, the files of a folder.

use std::collections::HashSet;
use std::fs::read_dir;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::data::DataError;

/// Longer lines are refused before they are read.
const MAX_LINE: u64 = 64 << 20;
/// The bytes that some editors put at the start of a file.
pub(crate) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
/// Largest depth of nested folders.
const MAX_DEPTH: usize = 32;

/// A file of text, and what it holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Text {
    pub(crate) path: PathBuf,
    pub(crate) content: Content,
    /// Index of the path that names it or its folder.
    pub(crate) argument: usize,
}

/// The content of a text file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// Text that may continue in the next file.
    Text,
    /// One document.
    Document,
    /// A document in a field of each line.
    Lines,
}

/// Lists the files that `paths` name. A folder stands for all files below it in the order of their
/// names, except hidden ones. A file that is named and also lies in a named folder appears once.
pub(crate) fn texts(paths: &[PathBuf]) -> Result<Vec<Text>, DataError> {
    let (mut texts, mut known) = (Vec::new(), Covered::default());
    for (argument, path) in paths.iter().enumerate() {
        if path.is_dir() {
            let n_found = below(path, 0, argument, &mut known, &mut texts)?;
            if n_found == 0 {
                return Err(DataError::EmptyFolder { path: path.clone() });
            }
        } else {
            let place = place(path);
            if known.in_folders.contains(&place) {
                continue;
            }
            known.named.insert(place);
            let content = content(path, Content::Text);
            texts.push(Text { path: path.clone(), content, argument });
        }
    }
    Ok(texts)
}

/// The files found so far. A file may be named twice on purpose, but a file that is also in a
/// folder is listed once.
#[derive(Default)]
struct Covered {
    named: HashSet<PathBuf>,
    in_folders: HashSet<PathBuf>,
}

/// The location of a file, whichever path leads to it; a link is a file of its own.
fn place(path: &Path) -> PathBuf {
    let folder = path.parent().map(|folder| folder.join("."));
    let folder = folder.and_then(|folder| folder.canonicalize().ok());
    match (folder, path.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => path.to_path_buf(),
    }
}

/// Adds the files below a folder that are not known yet; returns the number of files there.
fn below(
    folder: &Path,
    depth: usize,
    argument: usize,
    known: &mut Covered,
    texts: &mut Vec<Text>,
) -> Result<usize, DataError> {
    let unreadable = |reason| DataError::Unreadable { path: folder.to_path_buf(), reason };
    if depth > MAX_DEPTH {
        let reason = format!("more than {MAX_DEPTH} folders within each other");
        return Err(unreadable(io::Error::other(reason)));
    }
    let entries = read_dir(folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>());
    let mut paths = entries.map_err(unreadable)?;
    paths.retain(|path| {
        path.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b"."))
    });
    paths.sort();
    let here = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
    let mut n_found = 0;
    for path in paths {
        if path.is_dir() {
            n_found += below(&path, depth + 1, argument, known, texts)?;
            continue;
        }
        n_found += 1;
        let place = path.file_name().map_or_else(|| path.clone(), |name| here.join(name));
        if !known.named.contains(&place) && known.in_folders.insert(place) {
            let content = content(&path, Content::Document);
            texts.push(Text { path, content, argument });
        }
    }
    Ok(n_found)
}

fn content(path: &Path, other: Content) -> Content {
    let ending = path.extension().and_then(|ending| ending.to_str());
    let is = |name: &str| ending.is_some_and(|ending| ending.eq_ignore_ascii_case(name));
    if is("jsonl") || is("ndjson") { Content::Lines } else { other }
}

/// A line of a JSONL file.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Document {
    /// Line number of the document, from 1.
    pub(crate) line: u64,
    /// The text of the prompt, if lines have prompts.
    pub(crate) prompt: Option<String>,
    pub(crate) text: String,
}

impl Document {
    /// Number of bytes to encode.
    pub(crate) fn n_bytes(&self) -> u64 {
        (self.text.len() + self.prompt.as_deref().map_or(0, str::len)) as u64
    }
}

/// The lines of a JSONL file that are not blank.
pub(crate) struct JsonLines<'d, R> {
    path: &'d Path,
    lines: R,
    /// Number of lines read.
    line: u64,
    /// Number of bytes read.
    pub(crate) bytes: u64,
}

impl<'d, R: BufRead> JsonLines<'d, R> {
    pub(crate) fn new(path: &'d Path, lines: R) -> JsonLines<'d, R> {
        JsonLines { path, lines, line: 0, bytes: 0 }
    }

    /// Returns the lines of about `bytes` further bytes, with their numbers from 1; none at the end.
    pub(crate) fn next(&mut self, bytes: u64) -> Result<Vec<(u64, Vec<u8>)>, DataError> {
        let (end, mut found) = (self.bytes + bytes, Vec::new());
        while self.bytes < end || found.is_empty() {
            let mut line = Vec::new();
            let read = self.lines.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut line);
            let read = read.map_err(|reason| DataError::Unreadable {
                path: self.path.to_path_buf(),
                reason,
            })?;
            if read == 0 {
                break;
            }
            (self.line, self.bytes) = (self.line + 1, self.bytes + read as u64);
            if read as u64 > MAX_LINE {
                let reason = format!("it is longer than {MAX_LINE} bytes");
                return Err(refusal(self.path, self.line, reason));
            }
            if self.line == 1 && line.starts_with(BYTE_ORDER_MARK) {
                line.drain(..BYTE_ORDER_MARK.len());
            }
            if !line.trim_ascii().is_empty() {
                found.push((self.line, line));
            }
        }
        Ok(found)
    }
}

/// The documents of a JSONL file, one from each line that is not blank.
pub(crate) struct Documents<'d, R> {
    path: &'d Path,
    prompt: Option<&'d str>,
    field: &'d str,
    pub(crate) lines: JsonLines<'d, R>,
}

impl<'d, R: BufRead> Documents<'d, R> {
    /// Reads documents from `lines`: the text in the field `field` of each, preceded by the one in
    /// the field `prompt`.
    pub(crate) fn new(
        path: &'d Path,
        prompt: Option<&'d str>,
        field: &'d str,
        lines: R,
    ) -> Documents<'d, R> {
        Documents { path, prompt, field, lines: JsonLines::new(path, lines) }
    }

    /// Returns the documents of about `bytes` further bytes; none at the end.
    pub(crate) fn next(&mut self, bytes: u64) -> Result<Vec<Document>, DataError> {
        let lines = self.lines.next(bytes)?;
        lines.iter().map(|(line, text)| self.document(*line, text)).collect()
    }

    fn document(&self, line: u64, text: &[u8]) -> Result<Document, DataError> {
        let refused = |reason| refusal(self.path, line, reason);
        let fields = serde_json::from_slice::<Map<String, Value>>(text);
        let mut fields = fields.map_err(|e| refused(format!("no JSON object: {e}")))?;
        let text = take_text(&mut fields, self.field).map_err(refused)?;
        let prompt = self.prompt.map(|field| take_text(&mut fields, field));
        Ok(Document { line, prompt: prompt.transpose().map_err(refused)?, text })
    }
}

fn refusal(path: &Path, line: u64, reason: String) -> DataError {
    DataError::Line { path: path.to_path_buf(), line, reason }
}

/// Takes the text in a field, or returns why there is none.
fn take_text(fields: &mut Map<String, Value>, field: &str) -> Result<String, String> {
    match fields.remove(field) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("its field `{field}` is not a text")),
        None => {
            let texts = fields.iter().filter(|(_, value)| value.is_string());
            let names: Vec<_> = texts.map(|(name, _)| format!("`{name}`")).collect();
            let there = match names.as_slice() {
                [] => "no other text".into(),
                names => format!("text in {}: choose one with --field", names.join(", ")),
            };
            Err(format!("it has no field `{field}`, but {there}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn documents(lines: &str) -> Result<Vec<String>, String> {
        let path = Path::new("x.jsonl");
        let lines = lines.as_bytes();
        let mut documents = Documents::new(path, None, "text", lines);
        let mut all = Vec::new();
        loop {
            match documents.next(8).map_err(|refusal| refusal.to_string())? {
                some if some.is_empty() => return Ok(all),
                some => all.extend(some.into_iter().map(|document| document.text)),
            }
        }
    }

    #[test]
    fn a_line_is_a_document_and_a_bad_one_is_named() {
        let lines = "{\"text\": \"one\\n\", \"n\": 1}\n\n  \r\n{\"text\": \"\"}\n{\"a\": {}, \"text\": \"two\"}";
        assert_eq!(documents(lines).unwrap(), ["one\n", "", "two"]);
        assert!(documents("").unwrap().is_empty());
        assert_eq!(documents("\u{feff}{\"text\": \"one\"}").unwrap(), ["one"]);
        for (line, refusal) in [
            (
                "{\"body\": \"x\", \"n\": 1}",
                "it has no field `text`, but text in `body`: choose one with --field",
            ),
            ("{\"n\": 1}", "it has no field `text`, but no other text"),
            ("{\"text\": 1}", "its field `text` is not a text"),
            ("[1]", "no JSON object: invalid type: sequence, expected a map at line 1 column 0"),
        ] {
            let lines = format!("{{\"text\": \"one\"}}\n{line}\n");
            assert_eq!(documents(&lines).unwrap_err(), format!("line 2 of x.jsonl: {refusal}"));
        }
        let torn = documents("{\"text\": \"on").unwrap_err();
        assert!(torn.starts_with("line 1 of x.jsonl: no JSON object: EOF"), "{torn}");
    }

    #[test]
    fn a_folder_is_its_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("b")).unwrap();
        for name in ["c.txt", "a.jsonl", "b/z.md", ".hidden"] {
            fs::write(at(name), "x").unwrap();
        }
        let of = |name: &str, content, argument| Text { path: at(name), content, argument };
        let found = texts(&[folder.path().to_path_buf()]).unwrap();
        let (document, lines) = (Content::Document, Content::Lines);
        let below = [of("a.jsonl", lines, 0), of("b/z.md", document, 0), of("c.txt", document, 0)];
        assert_eq!(found, below);
        let whole = folder.path().to_path_buf();
        let found = texts(&[whole.clone(), at("c.txt"), at("b"), at("b/../b/z.md")]).unwrap();
        assert_eq!(found, below, "what a folder has is there once");
        let found = texts(&[at("b/z.md"), whole]).unwrap();
        let of_folder = [of("a.jsonl", lines, 1), of("c.txt", document, 1)];
        assert_eq!(found[0], of("b/z.md", Content::Text, 0));
        assert_eq!(found[1..], of_folder);
        let twice = texts(&[at("c.txt"), at("c.txt")]).unwrap();
        assert_eq!(twice.len(), 2, "a file that is named twice is wanted twice");
        fs::write(at("LINES.JsonL"), "x").unwrap();
        assert_eq!(texts(&[at("LINES.JsonL")]).unwrap()[0].content, Content::Lines);
        fs::create_dir(at("empty")).unwrap();
        let refusal = texts(&[at("empty")]).unwrap_err().to_string();
        assert!(refusal.ends_with("empty has no file: name one with text"), "{refusal}");
    }
}
