//! Reading and writing of files: none is read without a limit, none is found half written.
//!
//! A file that a user names and that is read once (settings, a schedule) may be a pipe. A file that is found in a
//! folder, or read more than once, must be a regular file: a FIFO would block for ever, a device might never end.

pub mod disk;
pub(crate) mod tensors;

use std::fs::{File, Metadata, OpenOptions, create_dir_all, remove_file};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;

/// The byte order mark that some editors put at the beginning of a file.
const BYTE_ORDER_MARK: char = '\u{feff}';
/// The reason why a run no longer writes into its folder.
pub const LOST: &str = "the folder was removed, moved or replaced while the run trained";

/// Opens a regular file for reading; anything else is refused at once.
pub fn open_regular(path: &Path) -> Result<File> {
    if path.metadata()?.is_file() {
        File::open(path)
    } else {
        Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file"))
    }
}

/// Returns the content of a regular file, or `None` if it is longer than `most` bytes.
pub fn read_regular(path: &Path, most: u64) -> Result<Option<Vec<u8>>> {
    at_most(open_regular(path)?, most)
}

/// Returns the text of a regular file, which must be UTF-8, or `None` if it is longer than `most` bytes.
pub fn text_regular(path: &Path, most: u64) -> Result<Option<String>> {
    text(read_regular(path, most)?)
}

/// Returns the content of a file or pipe. Stops reading and returns `None` if it is longer than `most` bytes.
pub fn read_at_most(path: &Path, most: u64) -> Result<Option<Vec<u8>>> {
    at_most(File::open(path)?, most)
}

/// Returns the text of a file or pipe, which must be UTF-8, or `None` if it is longer than `most` bytes.
pub fn text_at_most(path: &Path, most: u64) -> Result<Option<String>> {
    text(read_at_most(path, most)?)
}

/// Returns the bytes as text, without the byte order mark that some editors put at the beginning of a file.
fn text(bytes: Option<Vec<u8>>) -> Result<Option<String>> {
    let text = bytes.map(String::from_utf8).transpose();
    let text = text.map_err(|e| Error::new(ErrorKind::InvalidData, e))?;
    Ok(text.map(|text| match text.strip_prefix(BYTE_ORDER_MARK) {
        Some(rest) => rest.to_string(),
        None => text,
    }))
}

/// Reads the rest, or returns `None` if it is longer than `most` bytes.
pub fn at_most(from: impl Read, most: u64) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    from.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

/// Writes a file completely or not at all. Anything of its name is replaced, even a link, device or pipe.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    disk::Disk::default().write(path, |out| out.write_all(content)).map(drop)
}

/// Writes a file that a user named: like [`write()`], but into an existing device or pipe of that name.
pub fn write_named(path: &Path, content: &[u8]) -> Result<()> {
    let disk = disk::Disk::default().into_pipes();
    disk.write(path, |out| out.write_all(content)).map(drop)
}

/// Makes a folder, and checks that files can be written there.
pub fn prepare_dir(dir: &Path) -> Result<()> {
    create_dir_all(dir)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let probe = dir.join(format!(".probe-{}-{}", std::process::id(), now.as_nanos()));
    OpenOptions::new().write(true).create_new(true).open(&probe)?;
    remove_file(&probe)
}

/// Makes an empty file, replacing an existing one. A link is replaced, and its target is not touched.
pub fn replace(path: &Path) -> Result<File> {
    match remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => OpenOptions::new().write(true).create_new(true).open(path),
    }
}

/// The identity of a folder, which distinguishes it from another that later gets its name.
#[derive(Clone)]
pub struct FolderId {
    path: PathBuf,
    /// `None` if the folder did not exist, or the system does not identify folders.
    id: Option<(u64, u64)>,
}

impl FolderId {
    /// Identifies the folder that has this path now.
    pub fn of(path: &Path) -> FolderId {
        FolderId { path: path.to_path_buf(), id: id(path.metadata()) }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns false if its name is gone or leads to another folder.
    pub fn is_there(&self) -> bool {
        self.id.is_none() || !is_other(self.id, self.path.metadata())
    }
}

/// Returns the unique id of a file or folder.
#[cfg(unix)]
fn id(found: Result<Metadata>) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    found.ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn id(_: Result<Metadata>) -> Option<(u64, u64)> {
    None
}

/// Returns true if `found` is not the file with this id, or no file was found. Any other error,
/// such as a stale handle of a network file system, proves nothing about the file.
fn is_other(held: Option<(u64, u64)>, found: Result<Metadata>) -> bool {
    match found {
        Err(e) => matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        found => id(found) != held,
    }
}

/// Returns true if the name of an open file is gone or belongs to another file, given the metadata
/// `found` under that name.
pub fn is_lost(file: &File, found: Result<Metadata>) -> bool {
    let held = id(file.metadata());
    // If the system does not identify files, an open one cannot be replaced.
    let is_known = held.is_some() || cfg!(not(unix));
    is_known && is_other(held, found)
}

/// Returns true if an open file is the one of this name.
#[cfg(unix)]
pub fn is_at(file: &File, path: &Path) -> bool {
    let held = id(file.metadata());
    held.is_some() && held == id(path.symlink_metadata())
}

/// Returns true if a file of this name exists: an open file cannot be replaced.
#[cfg(not(unix))]
pub fn is_at(_: &File, path: &Path) -> bool {
    path.is_file()
}

/// Returns true if the error is that this process has reached its limit of open files.
pub fn is_too_many(error: &Error) -> bool {
    #[cfg(unix)]
    return error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error());
    #[cfg(not(unix))]
    return matches!(error.raw_os_error(), Some(4)); // ERROR_TOO_MANY_OPEN_FILES
}

/// Returns the most files that this process may open, if the limit is known.
pub fn open_files_limit() -> Option<u64> {
    #[cfg(unix)]
    return rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    #[cfg(not(unix))]
    return None;
}

/// Raises this process's limit of open files as far as the system allows.
pub fn raise_open_files() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        // If the limit cannot be raised, opening a file will fail and report it.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

/// Makes opening fail if the path itself is a symbolic link, or a pipe without a reader.
pub fn no_follow(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        std::os::unix::fs::OpenOptionsExt::custom_flags(options, flags.bits() as i32);
    }
    options
}

/// Returns the fault for a file that failed during a run.
pub fn io_fault(what: &str, path: &Path, error: &dyn ToString) -> Fault {
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

    #[cfg(unix)]
    #[test]
    fn a_file_is_lost_only_if_its_name_is_gone_or_another_files() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["own", "other"].map(|name| folder.path().join(name));
        let file = File::create(&path).unwrap();
        File::create(&other).unwrap();
        let home = FolderId::of(folder.path());
        assert!(!is_lost(&file, path.symlink_metadata()) && home.is_there());
        for errno in [5, 13, 116] {
            assert!(!is_lost(&file, Err(Error::from_raw_os_error(errno))), "{errno}");
            assert!(!is_other(home.id, Err(Error::from_raw_os_error(errno))), "{errno}");
        }
        assert!(is_lost(&file, other.symlink_metadata()));
        assert!(is_lost(&file, folder.path().join("none").symlink_metadata()));
        assert!(is_lost(&file, path.join("none").symlink_metadata()));
        drop(folder);
        assert!(!home.is_there());
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_text() {
        for (bytes, wanted) in
            [("\u{feff}{}", "{}"), ("{}\u{feff}", "{}\u{feff}"), ("\u{feff}", ""), ("", "")]
        {
            assert_eq!(text(Some(bytes.into())).unwrap().as_deref(), Some(wanted), "{bytes}");
        }
        assert_eq!(text(None).unwrap(), None);
    }
}
