//! Files that are complete or absent, after a kill or a loss of power at any moment.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions, create_dir_all, read_dir, remove_dir_all, remove_file, rename};
use std::io::{BufWriter, Error, Result, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{FolderId, LOST};

/// Bytes of one write: a part of a core's cache, so that hashed bytes are still in it when they are written.
pub(super) const CHUNK: usize = 1 << 18;

/// The suffix of a file's name until it is whole.
const PART: &str = ".part";

/// The changes that a save makes to the file system, one by one.
#[derive(Clone, Default)]
pub struct Disk {
    gate: Option<Gate>,
    /// The folder that must exist for any change.
    home: Option<FolderId>,
    /// Whether a device or pipe is written to instead of replaced.
    into_pipes: bool,
    /// Takes each file once it is whole, if it belongs elsewhere.
    sink: Option<Sink>,
}

type Sink = Arc<dyn Fn(&Path) -> Result<()> + Send + Sync>;
type Gate = Arc<dyn Fn(&'static str, &Path) -> Result<()> + Send + Sync>;

/// Size and BLAKE3 (hexadecimal) of a written file.
pub struct Written {
    /// Bytes.
    pub bytes: u64,
    /// Hash of all bytes.
    pub blake3: String,
}

impl Disk {
    /// Calls `gate` before each change, with its kind and its path; an error prevents the change.
    /// Tests use it to stop a save at every point, or to fill the disk.
    pub fn gated(gate: impl Fn(&'static str, &Path) -> Result<()> + Send + Sync + 'static) -> Disk {
        Disk { gate: Some(Arc::new(gate)), ..Disk::default() }
    }

    /// Refuses every change once the folder is gone, or another has its name.
    pub fn within(self, home: &Path) -> Disk {
        Disk { home: Some(FolderId::of(home)), ..self }
    }

    /// Gives each file to `sink` once it is whole, and then removes it. Makes folders as needed.
    pub fn passing_on(sink: impl Fn(&Path) -> Result<()> + Send + Sync + 'static) -> Disk {
        Disk { sink: Some(Arc::new(sink)), ..Disk::default() }
    }

    /// Writes into an existing device or pipe with the file's name, which a user gave.
    pub fn into_pipes(self) -> Disk {
        Disk { into_pipes: true, ..self }
    }

    /// Writes a file under a temporary name, and renames it once it is on disk. A failed write
    /// leaves no file.
    pub fn write(
        &self,
        path: &Path,
        fill: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> Result<Written> {
        let is_pipe = || path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
        if self.into_pipes && is_pipe() {
            let file = self.pass("create", path, || OpenOptions::new().write(true).open(path))?;
            return self.fill(path, file, fill).map(|(written, _)| written);
        }
        if let Some(sink) = &self.sink {
            path.parent().map_or(Ok(()), create_dir_all)?;
            let whole = Disk { sink: None, ..self.clone() };
            let written = whole.write(path, fill)?;
            let sunk = sink(path).map(|()| written);
            let _ = remove_file(path); // it only takes space
            return sunk;
        }
        let part = own_part_of(path);
        self.write_part(&part, fill)
            .and_then(|written| self.rename(&part, path).map(|()| written))
            .inspect_err(|_| {
                let _ = self.remove_file(&part); // the error that counts is the first
            })
    }

    fn write_part(
        &self,
        part: &Path,
        fill: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> Result<Written> {
        let file = self.pass("create", part, || super::replace(part))?;
        let (written, file) = self.fill(part, file, fill)?;
        self.pass("sync", part, || file.sync_all())?;
        Ok(written)
    }

    fn fill(
        &self,
        path: &Path,
        file: File,
        fill: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> Result<(Written, File)> {
        let out = Out { disk: self, path, file, bytes: 0, hasher: blake3::Hasher::new() };
        let mut out = BufWriter::with_capacity(CHUNK, out);
        fill(&mut out)?;
        let Out { file, bytes, hasher, .. } = out.into_inner().map_err(|e| e.into_error())?;
        Ok((Written { bytes, blake3: hasher.finalize().to_string() }, file))
    }

    pub(crate) fn create_dir(&self, path: &Path) -> Result<()> {
        self.pass("create folder", path, || create_dir_all(path))
    }

    /// Syncs a folder, so that the names in it last.
    pub(crate) fn sync_dir(&self, path: &Path) -> Result<()> {
        self.pass("sync folder", path, || {
            if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
        })
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.pass("rename", to, || rename(from, to))
    }

    pub(crate) fn remove_file(&self, path: &Path) -> Result<()> {
        self.pass("remove", path, || remove_file(path))
    }

    pub(crate) fn remove_dir(&self, path: &Path) -> Result<()> {
        self.pass("remove folder", path, || remove_dir_all(path))
    }

    /// Makes a change that the gate allows.
    fn pass<T>(
        &self,
        change: &'static str,
        path: &Path,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.gate.as_ref().map_or(Ok(()), |gate| gate(change, path))?;
        if self.home.as_ref().is_some_and(|home| !home.is_there()) {
            return Err(Error::other(LOST));
        }
        make()
    }
}

/// Returns the name of a file of this process until it is whole. Neither another process nor a user
/// has a file of that name.
fn own_part_of(path: &Path) -> PathBuf {
    with_ending(path, &format!(".{}{PART}", std::process::id()))
}

/// Returns true if `name` is the temporary name that some process gives the file at `path`.
pub fn is_part_of(name: &OsStr, path: &Path) -> bool {
    let process = || {
        let rest = name.to_str()?.strip_prefix(path.file_name()?.to_str()?)?;
        rest.strip_prefix('.')?.strip_suffix(PART)
    };
    process().is_some_and(|id| !id.is_empty() && id.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Removes partial files with these names in `folder`, which killed processes have left.
pub fn remove_parts(folder: &Path, names: &[&str]) {
    for entry in read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if names.iter().any(|whole| is_part_of(&name, Path::new(whole))) {
            let _ = remove_file(entry.path()); // it only takes space
        }
    }
}

/// Returns the name of a file until it is whole, if the folder is this process's own.
pub fn part_of(path: &Path) -> PathBuf {
    with_ending(path, PART)
}

/// Returns the path with an ending after the whole name.
pub fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// A file that is being written.
struct Out<'d> {
    disk: &'d Disk,
    path: &'d Path,
    file: File,
    bytes: u64,
    hasher: blake3::Hasher,
}

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let chunk = &bytes[..bytes.len().min(CHUNK)];
        self.disk.pass("write", self.path, || self.file.write_all(chunk))?;
        self.hasher.update(chunk);
        self.bytes += chunk.len() as u64;
        Ok(chunk.len())
    }

    fn flush(&mut self) -> Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_user_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("a.json.part"), "mine").unwrap();
        Disk::default().write(&at("a.json"), |out| out.write_all(b"whole")).unwrap();
        assert_eq!(std::fs::read(at("a.json")).unwrap(), b"whole");
        let failed = Disk::default().write(&at("b.json"), |_| Err(std::io::Error::other("full")));
        assert!(failed.is_err());
        assert_eq!(std::fs::read(at("a.json.part")).unwrap(), b"mine");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_written_to_only_where_a_user_named_it() {
        use std::os::unix::fs::FileTypeExt;
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read(pipe).unwrap()
        });
        Disk::default().into_pipes().write(&pipe, |out| out.write_all(b"whole")).unwrap();
        assert_eq!(reader.join().unwrap(), b"whole");
        assert!(pipe.metadata().unwrap().file_type().is_fifo());
        Disk::default().write(&pipe, |out| out.write_all(b"whole")).unwrap();
        assert_eq!(std::fs::read(&pipe).unwrap(), b"whole");
    }

    #[test]
    fn parts_are_told_by_their_names() {
        let own = own_part_of(Path::new("dir/a.json"));
        assert!(is_part_of(own.file_name().unwrap(), Path::new("dir/a.json")));
        for other in ["a.json", "a.json.part", "a.json..part", "a.json.1x.part", "b.json.1.part"] {
            assert!(!is_part_of(OsStr::new(other), Path::new("dir/a.json")), "{other}");
        }
    }
}
