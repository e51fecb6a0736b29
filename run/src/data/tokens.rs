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
mod tests;
