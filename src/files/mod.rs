//! How files are read and written here: none is read without a limit, none is found half written.

pub(crate) mod disk;
pub(crate) mod tensors;

use std::fs::{File, create_dir_all, remove_file};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;

/// The content of a file, or `None` if it is longer than `most` bytes; then no more of it was read.
pub fn read_at_most(path: &Path, most: u64) -> Result<Option<Vec<u8>>> {
    at_most(File::open(path)?, most)
}

/// The same of a file that must be UTF-8.
pub fn text_at_most(path: &Path, most: u64) -> Result<Option<String>> {
    let text = read_at_most(path, most)?.map(String::from_utf8).transpose();
    text.map_err(|e| Error::new(ErrorKind::InvalidData, e))
}

/// What is left to read, or `None` if that is longer than `most` bytes.
pub fn at_most(from: impl Read, most: u64) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    from.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

/// Writes a file, which is there whole or not at all.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    disk::Disk::default().write(path, |out| out.write_all(content)).map(drop)
}

/// Makes a folder, and makes sure that files can be written there.
pub(crate) fn prepare_dir(dir: &Path) -> Result<()> {
    let probe = dir.join("probe.part");
    create_dir_all(dir)?;
    File::create(&probe)?;
    remove_file(&probe)
}

/// The fault of a file that failed while a run was under way.
pub(crate) fn io_fault(what: &str, path: &Path, error: &dyn ToString) -> Fault {
    let message = format!("cannot write {what} {}: {}", path.display(), error.to_string());
    Fault::new(Class::Io, Rank(0), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_longer_is_not_given() {
        assert_eq!(at_most(&b"abc"[..], 3).unwrap().as_deref(), Some(&b"abc"[..]));
        assert_eq!(at_most(&b"abcd"[..], 3).unwrap(), None);
        assert_eq!(at_most(&b""[..], 0).unwrap(), Some(vec![]));
    }
}
