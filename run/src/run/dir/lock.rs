//! Locks: one run at a time per folder, and per file that a run writes elsewhere.

use std::fs::{File, Metadata, OpenOptions, TryLockError, remove_file};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use chimera_formats::files::{is_at, is_lost, no_follow, open_regular, text_regular};
use serde::{Deserialize, Serialize};

/// The lock of a run's folder.
pub(crate) const LOCK: &str = "lock";
/// Larger files are not our locks.
const MAX_BYTES: u64 = 1 << 12;

/// The right to write into a folder or a file, until it is dropped or its process ends for any reason.
///
/// The operating system locks the lock's own file, and forgets the locks of dead processes (on network
/// file systems with locks, also those of dead hosts). The content of the file only names the holder.
pub(crate) struct Lock {
    path: PathBuf,
    file: File,
}

/// The holder of a lock.
#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Holder {
    pid: u32,
    host: String,
    /// Nanoseconds since 1970.
    since: u64,
    /// Start of the process, in ticks of its machine. Process numbers are reused, in containers
    /// immediately.
    #[serde(default)]
    started: Option<u64>,
}

impl Lock {
    /// Takes the lock of a folder, even from a dead process.
    ///
    /// # Errors
    /// If another run has it; the error names that run.
    pub(crate) fn take(folder: &Path) -> Result<Lock> {
        let path = folder.join(LOCK);
        let place = format!("cannot write {}", path.display());
        Lock::at(path, &place, &|holder| {
            format!("{} is in use by {holder}: choose another --out", folder.display())
        })
    }

    /// Takes the lock at `lock` for an output that `option` names, so that no other run writes there meanwhile.
    ///
    /// # Errors
    /// If another run has it; the error names that run.
    pub(crate) fn of_output(option: &str, output: &Path, lock: PathBuf) -> Result<Lock> {
        let output = output.display();
        let place = format!("cannot write {output}, which takes a lock beside it");
        Lock::at(lock, &place, &|holder| {
            format!(
                "--{option} {output}: {holder} writes there, and it is at work: name another place"
            )
        })
    }

    /// Takes the lock at `path`. Errors name the `place`, and `refusal` words the error if another
    /// process has the lock.
    fn at(path: PathBuf, place: &str, refusal: &dyn Fn(&str) -> String) -> Result<Lock> {
        let place = || place.to_owned();
        loop {
            let mut open = OpenOptions::new();
            open.read(true).write(true).create(true).truncate(false);
            let mut file = no_follow(&mut open).open(&path).with_context(place)?;
            ensure!(
                file.metadata().with_context(place)?.is_file(),
                "{} is not a regular file",
                path.display()
            );
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let holder = holder(&mut file).map(|holder| holder.to_string());
                    bail!(refusal(holder.as_deref().unwrap_or("another run")))
                }
                // A file system without locks.
                Err(TryLockError::Error(e)) => return Err(e).with_context(place),
            }
            let me = serde_json::to_string(&Holder::me())?;
            file.set_len(0).and_then(|()| file.write_all(me.as_bytes())).with_context(place)?;
            if is_named(&file, path.symlink_metadata()).with_context(place)? {
                return Ok(Lock { path, file });
            }
        }
    }

    /// Returns false if its file is gone or was replaced, for example with the whole folder.
    pub(crate) fn is_held(&self) -> bool {
        !is_lost(&self.file, self.path.symlink_metadata())
    }

    /// Frees the space of the lock on a full disk for another small file.
    pub(crate) fn free_room(&self) {
        let _ = self.file.set_len(0); // the lock itself marks its holder, not its content
    }
}

/// Returns true if an open file still has its name, given the metadata `found` under that name. The
/// last holder of a lock may have removed it after it was opened here.
///
/// # Errors
/// If the name cannot be looked up, which a retry does not fix.
fn is_named(file: &File, found: io::Result<Metadata>) -> io::Result<bool> {
    match found {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        found => Ok(!is_lost(file, found)),
    }
}

/// Returns the name of this host; empty if it is unknown.
pub fn host_name() -> String {
    let host = text_regular(Path::new("/proc/sys/kernel/hostname"), MAX_BYTES).ok().flatten();
    let host = host.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    host.trim().to_string()
}

/// Returns true if a run is at work in a folder. A run on another machine counts as at work until it removes its lock.
pub fn is_at_work(folder: &Path) -> bool {
    let holder = open_regular(&folder.join(LOCK)).ok().and_then(|mut file| holder(&mut file));
    // Trying the lock itself could take it from a run that begins at this moment.
    let is_dead = |holder: &Holder| {
        let is_other = || holder.started.is_some() && started(holder.pid) != holder.started;
        let processes = Path::new("/proc");
        holder.host == host_name()
            && processes.join("self").exists()
            && (!processes.join(holder.pid.to_string()).exists() || is_other())
    };
    holder.is_some_and(|holder| !is_dead(&holder))
}

impl Drop for Lock {
    fn drop(&mut self) {
        if is_at(&self.file, &self.path) {
            let _ = remove_file(&self.path);
        }
    }
}

impl Holder {
    fn me() -> Holder {
        let (pid, since) = (std::process::id(), SystemTime::now().duration_since(UNIX_EPOCH));
        let since = u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX);
        Holder { pid, host: host_name(), since, started: started(pid) }
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let since = UNIX_EPOCH.checked_add(Duration::from_nanos(self.since));
        let age = since.and_then(|since| since.elapsed().ok()).unwrap_or_default();
        write!(f, "process {} on host {}, which began {} s ago", self.pid, self.host, age.as_secs())
    }
}

/// Returns when a process of this machine was started, if the system says so (proc_pid_stat(5), field 22).
fn started(pid: u32) -> Option<u64> {
    let path = format!("/proc/{pid}/stat");
    let stat = text_regular(Path::new(&path), MAX_BYTES).ok()??;
    let (_, behind_its_name) = stat.rsplit_once(')')?;
    behind_its_name.split_whitespace().nth(19)?.parse().ok()
}

fn holder(file: &mut File) -> Option<Holder> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_cannot_be_looked_up_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LOCK);
        let file = File::create(&path).unwrap();
        assert!(is_named(&file, path.symlink_metadata()).unwrap());
        assert!(!is_named(&file, Err(ErrorKind::NotFound.into())).unwrap());
        let other = folder.path().symlink_metadata();
        assert!(!is_named(&file, other).unwrap() || cfg!(not(unix)));
        let error = is_named(&file, Err(io::Error::from_raw_os_error(5))).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(5));
    }

    #[test]
    fn a_folder_has_one_lock_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = Lock::take(folder.path()).unwrap();
        let refusal = Lock::take(folder.path()).err().unwrap().to_string();
        let me = format!("is in use by process {} on host ", std::process::id());
        assert!(refusal.contains(&me), "{refusal}");
        drop(first);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        // The file of a dead process does not lock.
        std::fs::write(folder.path().join("lock"), "{\"pid\":1,\"host\":\"x\",\"since\":0}")
            .unwrap();
        drop(Lock::take(folder.path()).unwrap());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_that_has_the_number_of_a_dead_one_is_not_at_work() {
        let folder = tempfile::tempdir().unwrap();
        let lock = Lock::take(folder.path()).unwrap();
        assert!(is_at_work(folder.path()));
        let me = Holder::me();
        for (started, is_mine) in [(me.started, true), (None, true), (Some(1), false)] {
            let text = serde_json::to_string(&Holder { started, ..Holder::me() }).unwrap();
            std::fs::write(folder.path().join("lock"), text).unwrap();
            assert_eq!(is_at_work(folder.path()), is_mine, "{started:?}, {me:?}");
        }
        drop(lock);
    }
}
