//! Token ids in memory, or in files, which may be larger than memory.
//!
//! Files are read a window at a time through the system's cache, not mapped. So a file that is
//! truncated during a run causes an error, whereas with a mapping a signal would end the process.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use chimera_core::layers::IGNORED;
use chimera_formats::files;

use super::DataError;
use super::preparation::prepared::target_files;
use super::width::Width;

/// More files than this may exceed the usual limit of 1024 open files, together with all others
/// that are open.
const MANY: usize = 256;
/// Number of ids that are checked at once.
const CHUNK: usize = 1 << 16;

/// A sequence of token ids, one file after another.
#[derive(Debug)]
pub struct Tokens {
    width: Width,
    parts: Vec<Ids>,
    /// All ids are below this.
    vocab: usize,
    /// For each id 1 if it is a target, otherwise 0; `None` if all are.
    are_targets: Option<Box<Tokens>>,
}

/// The ids of one file, the first of which is number `start` overall.
#[derive(Debug)]
struct Ids {
    start: usize,
    len: usize,
    place: Backing,
}

#[derive(Debug)]
enum Backing {
    Memory(Cow<'static, [u8]>),
    File(PathBuf, Mutex<File>),
}

impl Tokens {
    /// Makes tokens of the bytes of a text.
    pub fn of_text(text: &'static [u8]) -> Tokens {
        Tokens::in_memory(Width::U8, text.into())
    }

    /// Makes tokens of any ids.
    pub fn of_ids(ids: &[u32]) -> Tokens {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        Tokens::in_memory(Width::U32, bytes.into())
    }

    fn in_memory(width: Width, bytes: Cow<'static, [u8]>) -> Tokens {
        let len = bytes.len() / width.bytes();
        let parts = vec![Ids { start: 0, len, place: Backing::Memory(bytes) }];
        Tokens { width, parts, vocab: usize::MAX, are_targets: None }
    }

    /// Opens the ids of `files`, which must have one width.
    pub(super) fn open(files: &[PathBuf]) -> Result<Tokens, DataError> {
        let tokens = Tokens::of_files(files)?;
        let Some(files) = target_files(files)? else { return Ok(tokens) };
        let are_targets = Tokens::of_files(&files)?;
        for (ids, are_targets) in tokens.parts.iter().zip(&are_targets.parts) {
            if ids.len != are_targets.len {
                let reason =
                    format!("it does not cover all {} tokens: prepare the data again", ids.len);
                return Err(DataError::Prepared { path: are_targets.path().into(), reason });
            }
        }
        Ok(Tokens { are_targets: Some(Box::new(are_targets)), ..tokens })
    }

    fn of_files(files: &[PathBuf]) -> Result<Tokens, DataError> {
        if files.len() > MANY {
            files::raise_open_files(); // a run opens others too
        }
        let mut tokens = Tokens::in_memory(Width::U8, Cow::Borrowed(&[]));
        tokens.parts.clear();
        for path in files {
            let width = Width::of(path);
            if tokens.parts.is_empty() {
                tokens.width = width;
            } else if width != tokens.width {
                let (found, expected) = (width.name(), tokens.width.name());
                return Err(DataError::Mixed { path: path.clone(), found, expected });
            }
            let part = Ids::open(path, width, tokens.len())?;
            tokens.parts.push(part);
        }
        Ok(tokens)
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.parts.last().map_or(0, |part| part.start + part.len)
    }

    /// Returns true if there are no ids.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the ids of `range` to `to`.
    ///
    /// # Errors
    /// If a file can no longer be read, or now has an invalid id.
    pub fn extend(&self, to: &mut Vec<u32>, range: Range<usize>) -> io::Result<()> {
        let first = to.len();
        for part in &self.parts {
            let start = range.start.max(part.start);
            let end = range.end.min(part.start + part.len);
            if start < end {
                part.extend(self.width, to, start - part.start..end - part.start)?;
            }
        }
        match to[first..].iter().find(|id| **id as usize >= self.vocab) {
            None => Ok(()),
            Some(id) => Err(io::Error::other(format!(
                "the data now has id {id}, but the vocabulary has {} ids: was a file changed?",
                self.vocab
            ))),
        }
    }

    /// Appends the ids of `range` to `to` as targets. [`IGNORED`] replaces ids that are not
    /// targets, and those after the token `end_of_text`, which no token of their document precedes.
    /// The range must not begin at the first id.
    ///
    /// # Errors
    /// If a file can no longer be read, or now has an invalid id.
    pub fn extend_targets(
        &self,
        to: &mut Vec<u32>,
        range: Range<usize>,
        end_of_text: Option<u32>,
    ) -> io::Result<()> {
        let mut ids = Vec::with_capacity(range.len() + 1);
        self.extend(&mut ids, range.start - 1..range.end)?;
        let mut are_targets = Vec::new();
        if let Some(known) = &self.are_targets {
            known.extend(&mut are_targets, range)?;
        }
        let is_target = |(nth, pair): (usize, &[u32])| {
            Some(pair[0]) != end_of_text && are_targets.get(nth).is_none_or(|is| *is > 0)
        };
        let pairs = ids.windows(2).enumerate();
        to.extend(pairs.map(|(nth, pair)| if is_target((nth, pair)) { pair[1] } else { IGNORED }));
        Ok(())
    }

    /// Number of targets; without marks it is all ids but the first.
    ///
    /// # Errors
    /// If a file can no longer be read.
    pub fn n_targets(&self, end_of_text: Option<u32>) -> io::Result<usize> {
        let (n, mut n_targets, mut targets) = (self.len(), 0, Vec::new());
        if self.are_targets.is_none() && end_of_text.is_none() {
            return Ok(n.saturating_sub(1));
        }
        for start in (1..n).step_by(CHUNK) {
            targets.clear();
            self.extend_targets(&mut targets, start..n.min(start + CHUNK), end_of_text)?;
            n_targets += targets.len() - n_ignored(&targets);
        }
        Ok(n_targets)
    }

    /// Returns true if any of the first `n` ids is a target.
    pub(super) fn has_targets(&self, n: usize, end_of_text: Option<u32>) -> io::Result<bool> {
        let mut targets = Vec::new();
        for start in (1..n).step_by(CHUNK) {
            targets.clear();
            self.extend_targets(&mut targets, start..n.min(start + CHUNK), end_of_text)?;
            if n_ignored(&targets) < targets.len() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// For each id 1 if it is a target, otherwise 0; `None` if all are.
    pub(super) fn are_targets(&self) -> Option<&Tokens> {
        self.are_targets.as_deref()
    }

    /// The storage width of the ids.
    pub(super) fn width(&self) -> Width {
        self.width
    }

    /// Refuses ids of `vocab` or above, also in later reads.
    pub(super) fn check(&mut self, vocab: usize) -> Result<(), DataError> {
        if vocab < self.width.n_ids() {
            let mut ids = Vec::with_capacity(CHUNK);
            let mut first_beyond = None;
            for part in &self.parts {
                for start in (0..part.len).step_by(CHUNK) {
                    ids.clear();
                    let range = start..part.len.min(start + CHUNK);
                    part.extend(self.width, &mut ids, range).map_err(|reason| {
                        DataError::Unreadable { path: part.path().into(), reason }
                    })?;
                    let beyond = ids.iter().position(|id| *id as usize >= vocab);
                    if let Some(at) = beyond {
                        let first = || (part.path().to_path_buf(), start + at, ids[at], 0);
                        let (.., highest) = first_beyond.get_or_insert_with(first);
                        *highest = ids.iter().copied().fold(*highest, u32::max);
                    }
                }
            }
            if let Some((path, position, id, highest)) = first_beyond {
                return Err(DataError::Vocabulary { path, position, id, vocab, highest });
            }
        }
        self.vocab = vocab;
        Ok(())
    }
}

/// Opens a file for the whole run.
fn open_to_stay(path: &Path) -> io::Result<File> {
    let opened = File::open(path);
    if !matches!(&opened, Err(e) if files::is_too_many(e)) {
        return opened;
    }
    files::raise_open_files();
    File::open(path).map_err(|e| {
        if files::is_too_many(&e) {
            let remedy = "raise `ulimit -n`, or make one file of the data with `chimera prepare`";
            io::Error::new(e.kind(), format!("{e}: {remedy}"))
        } else {
            e
        }
    })
}

/// Number of targets that are [`IGNORED`].
pub fn n_ignored(targets: &[u32]) -> usize {
    targets.iter().filter(|target| **target == IGNORED).count()
}

impl Ids {
    fn open(path: &Path, width: Width, start: usize) -> Result<Ids, DataError> {
        let (path, width) = (path.to_path_buf(), width.bytes());
        // Checks the path before opening it: opening a FIFO waits for a writer.
        let opened = match path.metadata() {
            Ok(metadata) if !metadata.is_file() => return Err(DataError::NotAFile { path }),
            looked_at => looked_at.and_then(|metadata| Ok((metadata, open_to_stay(&path)?))),
        };
        let (metadata, file) = match opened {
            Ok(opened) => opened,
            Err(reason) => return Err(DataError::Unreadable { path, reason }),
        };
        let bytes = metadata.len();
        if bytes == 0 {
            return Err(DataError::Empty { path });
        }
        if !bytes.is_multiple_of(width as u64) {
            return Err(DataError::Torn { path, bytes, width });
        }
        match usize::try_from(bytes) {
            Ok(bytes) => {
                let place = Backing::File(path, Mutex::new(file));
                Ok(Ids { start, len: bytes / width, place })
            }
            Err(_) => {
                let reason = io::ErrorKind::FileTooLarge.into();
                Err(DataError::Unreadable { path, reason })
            }
        }
    }

    fn path(&self) -> &Path {
        match &self.place {
            Backing::Memory(_) => Path::new("(the built-in text)"),
            Backing::File(path, _) => path,
        }
    }

    fn extend(&self, width: Width, to: &mut Vec<u32>, range: Range<usize>) -> io::Result<()> {
        let (start, end) = (range.start * width.bytes(), range.end * width.bytes());
        match &self.place {
            Backing::Memory(bytes) => width.extend(to, &bytes[start..end]),
            Backing::File(path, file) => {
                let mut bytes = vec![0; end - start];
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let read = file.seek(SeekFrom::Start(start as u64));
                read.and_then(|_| file.read_exact(&mut bytes)).map_err(|e| {
                    let message = format!("cannot read data file {}: {e}", path.display());
                    io::Error::new(e.kind(), message)
                })?;
                width.extend(to, &bytes);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    /// Opens files with these contents and returns their ids, or the error without the folder.
    fn opened(files: &[(&str, &[u8])], vocab: usize) -> Result<Vec<u32>, String> {
        let folder = TempDir::new().unwrap();
        let paths: Vec<_> = files.iter().map(|(name, _)| folder.path().join(name)).collect();
        for (path, (_, bytes)) in paths.iter().zip(files) {
            fs::write(path, bytes).unwrap();
        }
        let read = || -> Result<Vec<u32>, DataError> {
            let mut tokens = Tokens::open(&paths)?;
            tokens.check(vocab)?;
            let mut ids = Vec::new();
            for at in (0..tokens.len()).step_by(3) {
                tokens.extend(&mut ids, at..tokens.len().min(at + 3)).unwrap();
            }
            Ok(ids)
        };
        read().map_err(|e| e.to_string().replace(&format!("{}/", folder.path().display()), ""))
    }

    #[test]
    fn files_are_read_in_order_at_their_width() {
        let text = opened(&[("b.txt", b"de"), ("a.txt", b"abc")], 256);
        assert_eq!(text, Ok(vec![100, 101, 97, 98, 99]));
        let u16s = opened(&[("a.bin", &[1, 2, 3, 0]), ("b.bin", &[4, 0])], 50257);
        assert_eq!(u16s, Ok(vec![513, 3, 4]));
        assert_eq!(opened(&[("a.u32.bin", &[1, 2, 0, 0])], 50257), Ok(vec![513]));
        let long: Vec<u8> = (0..200_001_u32).map(|i| (i % 251) as u8).collect();
        let ids = opened(&[("long", &long)], 251).unwrap();
        assert_eq!(ids, long.iter().map(|&id| u32::from(id)).collect::<Vec<_>>());
    }

    #[test]
    fn refusals_name_file_and_position() {
        type Case<'a> = (&'a [(&'a str, &'a [u8])], &'a str);
        let mut far = [7; 200_000];
        far[150_000] = 100;
        let cases: [Case; 7] = [
            (&[("a.txt", b"a"), ("b.txt", b"")], "data file b.txt is empty"),
            (
                &[("a.bin", &[0; 5])],
                "data file a.bin has 5 bytes, not a multiple of the 2 bytes of a token id",
            ),
            (
                &[("a.u32.bin", &[0; 6])],
                "data file a.u32.bin has 6 bytes, not a multiple of the 4 bytes of a token id",
            ),
            (
                &[("a.txt", b"a"), ("b.bin", &[0; 2])],
                "data file b.bin holds u16 token ids, but the files before it hold text",
            ),
            (
                &[("a.bin", &[9, 0]), ("b.bin", &[0, 0, 99, 0, 100, 0])],
                "data file b.bin: token 2 has id 100, but the vocabulary has 100 ids: \
                 choose vocab 101 or more, or prepare the data with the tokenizer of the model",
            ),
            (
                &[("a.txt", b"abz")],
                "data file a.txt: token 2 has id 122, but the vocabulary has 100 ids: \
                 choose vocab 123 or more, or prepare the data with the tokenizer of the model",
            ),
            (
                &[("far", &far)],
                "data file far: token 150000 has id 100, but the vocabulary has 100 ids: \
                 choose vocab 101 or more, or prepare the data with the tokenizer of the model",
            ),
        ];
        for (files, refusal) in cases {
            assert_eq!(opened(files, 100), Err(refusal.to_owned()));
        }
    }

    #[test]
    fn missing_files_and_folders_are_refused() {
        let folder = TempDir::new().unwrap();
        let refusal = |path: PathBuf| Tokens::open(&[path]).unwrap_err().to_string();
        assert!(refusal(folder.path().join("none")).contains("No such file"));
        assert!(refusal(folder.path().to_path_buf()).contains("is not a regular file"));
    }

    /// A sparse file is larger than any memory.
    #[test]
    fn files_larger_than_memory_are_read_where_they_lie() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("sparse.bin");
        let file = File::create(&path).unwrap();
        if file.set_len(1 << 43).is_ok() {
            let mut tokens = Tokens::open(&[path]).unwrap();
            tokens.check(1 << 16).unwrap();
            let mut ids = Vec::new();
            tokens.extend(&mut ids, (1 << 42) - 5..1 << 42).unwrap();
            assert_eq!(ids, [0; 5]);
        }
    }

    #[test]
    fn files_that_change_are_errors() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("data.bin");
        fs::write(&path, [1, 0, 2, 0]).unwrap();
        let mut tokens = Tokens::open(std::slice::from_ref(&path)).unwrap();
        tokens.check(10).unwrap();
        fs::write(&path, [1, 0, 10, 0]).unwrap();
        let error = tokens.extend(&mut Vec::new(), 0..2).unwrap_err().to_string();
        assert!(error.contains("id 10, but the vocabulary has 10 ids"), "{error}");
        fs::write(&path, [1, 0]).unwrap();
        let error = tokens.extend(&mut Vec::new(), 0..2).unwrap_err().to_string();
        assert!(error.starts_with("cannot read data file "), "{error}");
    }
}
