//! The files of prepared data: either all or none of them exist, and one process at a time writes
//! them.

use std::fs::{File, OpenOptions, TryLockError, read_dir, remove_file, rename};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use chimera_formats::files::disk::{is_part_of, with_ending};
use chimera_formats::files::{self, io_fault, is_at, no_follow};

use super::prepared::{Prepared, beside, is_description, targets_beside, tokenizer_beside};
use crate::data::tokenizer;

/// The ending of a file name until the file is complete. A file with this ending was left by a dead
/// process, so no file of a user may have it.
const PART: &str = ".chimera-part";

/// The output files of prepared data: the file of ids, and those next to it.
///
/// Until all is done the file of ids has another name, under which the writing process holds a lock
/// on it. The system drops the locks of dead processes, so the files that such a process left are
/// replaced.
pub struct PreparedFiles {
    data: PathBuf,
    hold: Mutex<Hold>,
}

/// The state of the writing.
enum Hold {
    NotTaken,
    /// Being written; this is the locked file of ids.
    Taken(Arc<File>),
    /// Either complete or discarded.
    Over,
}

/// A file that does not have its final name yet.
pub(crate) struct PartFile {
    path: PathBuf,
    file: BufWriter<Arc<File>>,
}

impl PreparedFiles {
    /// Names the files of the data in `data`; none is touched yet.
    pub fn new(data: &Path) -> PreparedFiles {
        PreparedFiles { data: data.to_path_buf(), hold: Mutex::new(Hold::NotTaken) }
    }

    /// The path of the file of ids.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Removes unfinished files: another thread may call this before it ends the process.
    pub fn discard(&self) {
        let mut hold = self.hold();
        let part = part_of(&self.data);
        if let Hold::Taken(ids) = &*hold
            && is_at(ids, &part)
        {
            self.remove_beside(true);
            let _ = remove_file(part); // last: it marks the others as ours
        }
        *hold = Hold::Over;
    }

    /// Returns true if a path is that of one of the files while it is unfinished.
    pub(crate) fn is_part(&self, path: &Path) -> bool {
        let parts = [&self.data, &targets_beside(&self.data)].map(|file| part_of(file));
        parts.iter().any(|part| is_same(part, path)) || self.is_being_copied(path)
    }

    /// Returns true if a path is that of a file next to the ids while it is written.
    fn is_being_copied(&self, path: &Path) -> bool {
        let Some(name) = path.file_name() else { return false };
        self.beside()
            .iter()
            .any(|beside| is_part_of(name, beside) && is_same(&beside.with_file_name(name), path))
    }

    /// Returns true if a path is that of a file that may lie next to the ids.
    pub(crate) fn is_beside(&self, path: &Path) -> bool {
        self.beside().iter().any(|beside| is_same(beside, path))
    }

    /// Creates the file of ids and, if needed, the file that marks the targets.
    ///
    /// # Errors
    /// If another process is writing them, or any of the files exists.
    pub(crate) fn begin(&self, has_targets: bool) -> Result<(PartFile, Option<PartFile>)> {
        let mut hold = self.hold();
        ensure!(
            matches!(*hold, Hold::NotTaken),
            "{} was written or discarded before: begin with a new name",
            self.data.display()
        );
        let part = part_of(&self.data);
        let place = || format!("cannot write {}", part.display());
        let ids = Arc::new(self.lock(&part)?);
        // Files get their final names after the ids are written. If there are ids, such files were
        // left by a dead process.
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

    /// Gives the written files their final names, the ids last. Adds a description, and a copy of
    /// the `tokenizer.json` they were made with, if there is one.
    ///
    /// # Errors
    /// If the files were discarded or replaced meanwhile, or cannot be written.
    pub(crate) fn publish(&self, prepared: &Prepared, tokenizer: Option<&[u8]>) -> Result<()> {
        let mut hold = self.hold();
        let Hold::Taken(ids) = &*hold else { bail!("{} was discarded", self.data.display()) };
        let part = part_of(&self.data);
        if !is_at(ids, &part) {
            let reason = "it was removed or replaced meanwhile: prepare the data again";
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

    /// Opens the unfinished file of ids, and locks it.
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
                Ok(()) => {} // renamed or removed after it was opened here
                Err(TryLockError::WouldBlock) => bail!(
                    "{} is being written by another process: wait for it, or choose another --out",
                    self.data.display()
                ),
                // The file system has no locks.
                Err(TryLockError::Error(e)) => return Err(e).with_context(place),
            }
        }
    }

    /// The files that may lie next to the ids.
    fn beside(&self) -> [PathBuf; 3] {
        [beside(&self.data), tokenizer_beside(&self.data), targets_beside(&self.data)]
    }

    /// Removes files next to the ids: those without their final names, and the others if `named`.
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

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all(bytes);
        Ok(written.map_err(|e| io_fault("data", &self.path, &e))?)
    }

    /// Finishes the file: it is then on disk.
    pub(crate) fn finish(self) -> Result<()> {
        let PartFile { path, file } = self;
        let fault = |e: &dyn ToString| io_fault("data", &path, e);
        let file = file.into_inner().map_err(|e| fault(&e.into_error()))?;
        Ok(file.sync_all().map_err(|e| fault(&e))?)
    }
}

/// The name of a file until it is complete.
fn part_of(path: &Path) -> PathBuf {
    with_ending(path, PART)
}

/// Returns true if two paths lead to the same name in the same folder.
fn is_same(one: &Path, other: &Path) -> bool {
    let folder = |path: &Path| path.parent()?.join(".").canonicalize().ok();
    one.file_name() == other.file_name()
        && folder(one).is_some_and(|folder_of_one| folder(other) == Some(folder_of_one))
}
