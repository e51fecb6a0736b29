//! The files of prepared data: all of them there or none, and written by one process at a time.

use std::fs::{File, OpenOptions, TryLockError, read_dir, remove_file, rename};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail, ensure};

use super::prepared::{Prepared, beside, is_description, targets_beside, tokenizer_beside};
use super::tokenizer;
use crate::formats::files::disk::is_part_of;
use crate::formats::files::{self, io_fault, is_at, no_follow};

/// How the name of a file ends until it is done. What has such a name was left by a process that is dead, so no user's own
/// file may have it.
const PART: &str = ".chimera-part";

/// Where prepared data goes: the file of its ids, and what stands beside it.
///
/// Until all is done the ids have another name, under which the system locks them for the process that writes them. It
/// forgets the locks of dead processes, so what such a process left is replaced.
pub struct PreparedFiles {
    data: PathBuf,
    hold: Mutex<Hold>,
}

/// How far the writing is.
enum Hold {
    NotTaken,
    /// The ids under way, locked.
    Taken(Arc<File>),
    /// All is there, or nothing.
    Over,
}

/// A file that does not have its own name yet.
pub(super) struct PartFile {
    path: PathBuf,
    file: BufWriter<Arc<File>>,
}

impl PreparedFiles {
    /// The files of the data in `data`; none is touched yet.
    pub fn new(data: &Path) -> PreparedFiles {
        PreparedFiles { data: data.to_path_buf(), hold: Mutex::new(Hold::NotTaken) }
    }

    /// The file of the ids.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Removes what is not done: another thread may call this before it ends the process.
    pub fn discard(&self) {
        let mut hold = self.hold();
        let part = part_of(&self.data);
        if let Hold::Taken(ids) = &*hold
            && is_at(ids, &part)
        {
            self.remove_beside(true);
            let _ = remove_file(part); // last: it tells whose the others are
        }
        *hold = Hold::Over;
    }

    /// Whether a path is where one of the files is until it is done.
    pub(super) fn is_part(&self, path: &Path) -> bool {
        let parts = [&self.data, &targets_beside(&self.data)].map(|file| part_of(file));
        parts.iter().any(|part| is_same(part, path)) || self.is_being_copied(path)
    }

    /// Whether a path is where a file beside the ids is while it is written.
    fn is_being_copied(&self, path: &Path) -> bool {
        let Some(name) = path.file_name() else { return false };
        self.beside()
            .iter()
            .any(|beside| is_part_of(name, beside) && is_same(&beside.with_file_name(name), path))
    }

    /// Whether a path is that of a file which may stand beside the ids.
    pub(super) fn is_beside(&self, path: &Path) -> bool {
        self.beside().iter().any(|beside| is_same(beside, path))
    }

    /// Begins the file of the ids and, if there is to be one, that of which are targets.
    ///
    /// # Errors
    /// If another process writes them, or any of the files is there already.
    pub(super) fn begin(&self, has_targets: bool) -> Result<(PartFile, Option<PartFile>)> {
        let mut hold = self.hold();
        ensure!(
            matches!(*hold, Hold::NotTaken),
            "{} was written or discarded before: begin with a new name",
            self.data.display()
        );
        let part = part_of(&self.data);
        let place = || format!("cannot write {}", part.display());
        let ids = Arc::new(self.lock(&part)?);
        // Files get their names when the ids are written: beside ids they were left by a process that is dead.
        let is_left = ids.metadata().with_context(place)?.len() > 0;
        let mut foreign = vec![self.data.clone()];
        if is_left {
            foreign.extend(Some(beside(&self.data)).filter(|path| !is_description(path)))
        } else {
            foreign.extend(self.beside())
        }
        if let Some(path) = foreign.iter().find(|path| path.exists()) {
            if !is_left {
                let _ = remove_file(&part); // begun here
            }
            bail!("{} is there already: choose another --out", path.display());
        }
        self.remove_beside(is_left);
        ids.set_len(0).with_context(place)?;
        *hold = Hold::Taken(ids.clone());
        let targets = || {
            let path = part_of(&targets_beside(&self.data));
            let file = files::replace(&path);
            let file = file.with_context(|| format!("cannot write {}", path.display()))?;
            Ok::<_, anyhow::Error>(PartFile::new(path, Arc::new(file)))
        };
        let targets = has_targets.then(targets).transpose()?;
        Ok((PartFile::new(part, ids), targets))
    }

    /// Gives the files that are written their names, the ids last, with a description and what the `tokenizer.json` held
    /// that they were made with, if there is one.
    ///
    /// # Errors
    /// If they were discarded or replaced meanwhile, or cannot be written.
    pub(super) fn publish(&self, prepared: &Prepared, tokenizer: Option<&[u8]>) -> Result<()> {
        let mut hold = self.hold();
        let Hold::Taken(ids) = &*hold else { bail!("{} was discarded", self.data.display()) };
        let part = part_of(&self.data);
        if !is_at(ids, &part) {
            let reason = "it was removed or replaced under way: prepare the data again";
            return Err(io_fault("data", &part, &reason).into());
        }
        let named = |from: &Path, to: &Path| {
            rename(from, to).map_err(|reason| io_fault("data", to, &reason))
        };
        if prepared.targets.is_some() {
            let targets = targets_beside(&self.data);
            named(&part_of(&targets), &targets)?;
        }
        if let Some(tokenizer) = tokenizer {
            tokenizer::publish(&tokenizer_beside(&self.data), tokenizer)?;
        }
        let described = beside(&self.data);
        let written = files::write(&described, prepared.text()?.as_bytes());
        written.map_err(|reason| io_fault("data", &described, &reason))?;
        named(&part, &self.data)?;
        *hold = Hold::Over;
        Ok(())
    }

    fn hold(&self) -> MutexGuard<'_, Hold> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the ids under way, and locks them.
    fn lock(&self, part: &Path) -> Result<File> {
        let place = || format!("cannot write {}", part.display());
        loop {
            let mut open = OpenOptions::new();
            open.read(true).write(true).create(true).truncate(false);
            let file = no_follow(&mut open).open(part).with_context(place)?;
            ensure!(
                file.metadata().with_context(place)?.is_file(),
                "{} is not a regular file: remove it, or choose another --out",
                part.display()
            );
            match file.try_lock() {
                Ok(()) if is_at(&file, part) => return Ok(file),
                Ok(()) => {} // its last holder renamed or removed it after it was opened here
                Err(TryLockError::WouldBlock) => bail!(
                    "{} is being written by another process: wait for it, or choose another --out",
                    self.data.display()
                ),
                // A file system without locks.
                Err(TryLockError::Error(e)) => return Err(e).with_context(place),
            }
        }
    }

    /// The files that may stand beside the ids.
    fn beside(&self) -> [PathBuf; 3] {
        [beside(&self.data), tokenizer_beside(&self.data), targets_beside(&self.data)]
    }

    /// Removes what stands beside the ids: what has no name of its own yet, and the rest if it is `named`.
    fn remove_beside(&self, named: bool) {
        let folder = self.data.parent().map(|folder| folder.join("."));
        for entry in folder.and_then(|folder| read_dir(folder).ok()).into_iter().flatten().flatten()
        {
            if self.is_being_copied(&entry.path()) {
                let _ = remove_file(entry.path());
            }
        }
        let _ = remove_file(part_of(&targets_beside(&self.data))); // often not there
        if named {
            for path in self.beside() {
                let _ = remove_file(path);
            }
        }
    }
}

impl PartFile {
    fn new(path: PathBuf, file: Arc<File>) -> PartFile {
        PartFile { path, file: BufWriter::new(file) }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all(bytes);
        Ok(written.map_err(|e| io_fault("data", &self.path, &e))?)
    }

    /// Ends it: it is then on disk.
    pub(super) fn finish(self) -> Result<()> {
        let PartFile { path, file } = self;
        let fault = |e: &dyn ToString| io_fault("data", &path, e);
        let file = file.into_inner().map_err(|e| fault(&e.into_error()))?;
        Ok(file.sync_all().map_err(|e| fault(&e))?)
    }
}

/// The name of a file until it is done.
fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(PART);
    name.into()
}

/// Whether two paths lead to one name in one folder.
fn is_same(one: &Path, other: &Path) -> bool {
    let folder = |path: &Path| path.parent()?.join(".").canonicalize().ok();
    one.file_name() == other.file_name()
        && folder(one).is_some_and(|folder_of_one| folder(other) == Some(folder_of_one))
}
