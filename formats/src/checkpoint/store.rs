//! The checkpoints of a run.

use std::fs::read_dir;
use std::io;
use std::iter::once;
use std::path::{Path, PathBuf, absolute};
use std::thread::{self, ScopedJoinHandle};

use anyhow::Result;
use chimera_core::device::Elements;
use chimera_core::engine::{Snapshot, StateTensor};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;

use super::{Checkpoint, Disk, MANIFEST, Manifest, Open, Shard, Unusable, has_manifest, state_of};
use crate::files::io_fault;
use crate::files::tensors::{self, NamedTensor};

/// The least number of checkpoints that are kept, so that there is always one that is not being written.
const MIN_KEPT: usize = 2;

/// The folder `checkpoints` of a run.
#[derive(Clone)]
pub struct Store {
    folder: PathBuf,
    keep: usize,
    disk: Disk,
}

/// A folder of a store.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    folder: PathBuf,
    /// Number of steps that were trained.
    pub step: u64,
    /// Whether the folder has a manifest; if not, its save was interrupted.
    pub is_whole: bool,
}

impl Entry {
    /// Returns the folder's path.
    pub fn path(&self) -> PathBuf {
        self.folder.clone()
    }
}

impl Store {
    /// Returns the store of the run in `run`.
    pub fn of(run: &Path) -> Store {
        Store { folder: run.join("checkpoints"), keep: MIN_KEPT, disk: Disk::default() }
    }

    /// Keeps the last `keep` checkpoints, at least two.
    pub fn keeping(self, keep: usize) -> Store {
        Store { keep: keep.max(MIN_KEPT), ..self }
    }

    /// Refuses to write once the path of the run names another folder.
    pub fn bound(self) -> Store {
        let run = self.folder.parent().unwrap_or(&self.folder);
        Store { disk: self.disk.clone().within(run), ..self }
    }

    /// Writes to another disk.
    pub fn on(self, disk: Disk) -> Store {
        Store { disk, ..self }
    }

    /// Returns all checkpoints, the oldest first.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let found = match read_dir(&self.folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            found => found?,
        };
        let mut entries = Vec::new();
        for found in found {
            let folder = found?.path();
            let name = folder.file_name().and_then(|name| name.to_str());
            let step = name.and_then(|name| name.strip_prefix("step-")?.parse().ok());
            if let Some(step) = step.filter(|step| folder == self.folder_of(*step)) {
                entries.push(Entry { is_whole: has_manifest(&folder)?, folder, step });
            }
        }
        entries.sort_by_key(|entry| entry.step);
        Ok(entries)
    }

    /// Returns true if any save was finished, as far as that can be read.
    pub fn has_whole(&self) -> bool {
        self.entries().is_ok_and(|entries| entries.iter().any(|entry| entry.is_whole))
    }

    /// Returns the newest checkpoint that can be used; `None` if none was ever finished. Damaged ones
    /// are put aside, with a call of `tell` for each, and the remains of interrupted saves are removed.
    ///
    /// # Errors
    /// If there are checkpoints, but none can be used, or if one that may be sound cannot be read: then
    /// nothing is renamed or removed.
    pub fn newest(&self, tell: &dyn Fn(&str)) -> Result<Option<Checkpoint>> {
        self.newest_by(tell, &mut |path| Ok(Checkpoint::open(path)?))
    }

    /// Finds the newest sound checkpoint, using `open` to open each.
    pub fn newest_by(
        &self,
        tell: &dyn Fn(&str),
        open: &mut Open<'_>,
    ) -> Result<Option<Checkpoint>> {
        let searched = self.search(tell, open).map_err(|error| match error.downcast() {
            Ok(unusable) if !unusable.is_damage() => unusable.into(),
            Ok(Unusable { path, reason, kind }) => {
                let none = "no checkpoint of this run can be used, and without --resume it must not begin \
                            again in this folder";
                Unusable { path, reason: format!("{reason}; {none}"), kind }.into()
            }
            Err(other) => other,
        });
        let (found, newer) = searched?;
        for folder in newer.iter().filter(|_| found.is_some()) {
            self.put_aside(folder, tell);
        }
        for Entry { folder, .. } in self.entries().into_iter().flatten().filter(|e| !e.is_whole) {
            let _ = self.disk.remove_dir(&folder); // the next save tries it again
        }
        Ok(found)
    }

    /// Finds the newest sound checkpoint for a reader: nothing is put aside.
    pub fn readable(&self, tell: &dyn Fn(&str)) -> Result<Option<Checkpoint>> {
        Ok(self.search(tell, &mut |path| Ok(Checkpoint::open(path)?))?.0)
    }

    /// Returns the newest checkpoint that can be used, and the folders of newer ones.
    fn search(
        &self,
        tell: &dyn Fn(&str),
        open: &mut Open<'_>,
    ) -> Result<(Option<Checkpoint>, Vec<PathBuf>)> {
        let entries = self.entries().map_err(|e| {
            Unusable::unread(&self.folder, format!("its checkpoints cannot be read: {e}"))
        })?;
        let mut broken: Option<Unusable> = None;
        let mut newer = Vec::new();
        for entry in entries.into_iter().rev().filter(|entry| entry.is_whole) {
            match open(&entry.folder) {
                Ok(checkpoint) => return Ok((Some(checkpoint), newer)),
                Err(error) => {
                    let unusable: Unusable = error.downcast()?;
                    if !unusable.is_damage() {
                        return Err(unusable.into());
                    }
                    tell(&format!("this checkpoint cannot be used: {unusable}"));
                    newer.push(entry.folder);
                    broken = broken.or(Some(unusable));
                }
            }
        }
        broken.map_or(Ok((None, newer)), |unusable| Err(unusable.into()))
    }

    /// Returns the folder of its checkpoints.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the checkpoint after `step` steps, if it is finished.
    pub(super) fn whole(&self, step: u64) -> Option<PathBuf> {
        Some(self.folder_of(step)).filter(|folder| folder.join(MANIFEST).exists())
    }

    /// Returns true if a checkpoint is one of its own.
    pub fn holds(&self, checkpoint: &Path) -> bool {
        let whole = |path: &Path| path.canonicalize().ok();
        // A bare name has no parent, and a link to an archive counts by its own path.
        let holder = absolute(checkpoint).ok().and_then(|path| whole(path.parent()?));
        holder.is_some() && holder == whole(&self.folder)
    }

    /// Writes a checkpoint: one file for the tensors of each part that has any, then the manifest, to
    /// which the files are added. The oldest checkpoint is removed only after this one is published.
    ///
    /// # Errors
    /// If a value is not finite, or the files cannot be written; what was written of them is removed.
    pub fn save(&self, manifest: Manifest, parts: &[Vec<Snapshot>]) -> Result<PathBuf, Fault> {
        let step = manifest.step;
        self.begin(step)?;
        let shards = thread::scope(|scope| {
            let start = |(nth, part)| {
                let write = move || self.write(step, nth, part);
                // If no thread can be started, this one writes the part.
                thread::Builder::new().spawn_scoped(scope, write).map_err(|_| write())
            };
            let writers: Vec<_> = parts.iter().map(Vec::as_slice).enumerate().map(start).collect();
            let end = |writer: Result<ScopedJoinHandle<'_, _>, _>| match writer {
                Ok(thread) => thread.join().unwrap_or_else(|_| Err(writer_died())),
                Err(written) => written,
            };
            let ends = writers.into_iter().map(end);
            ends.filter_map(Result::transpose).collect::<Result<Vec<_>, _>>()
        });
        match shards {
            Ok(shards) => self.publish(Manifest { shards, ..manifest }),
            Err(fault) => {
                self.discard(step);
                Err(fault)
            }
        }
    }

    /// Makes the folder of a checkpoint, before its files are written. First removes checkpoints
    /// beyond the number to be kept: on a full disk there would be no room for the new one.
    pub(super) fn begin(&self, step: u64) -> Result<(), Fault> {
        let _ = self.prune(); // failures are reported when the checkpoint is published
        let folder = self.folder_of(step);
        let make = || {
            if !self.folder.exists() {
                self.disk.create_dir(&self.folder)?;
                self.folder.parent().map_or(Ok(()), |run| self.disk.sync_dir(run))?;
            }
            if folder.symlink_metadata().is_ok() {
                self.disk.remove_dir(&folder)?; // an interrupted save, or a link that leads nowhere
            }
            self.disk.create_dir(&folder)
        };
        let made: io::Result<()> = make();
        made.map_err(|e| {
            self.discard(step);
            self.fault(step, &e)
        })
    }

    /// Writes the file of one part, if it has any tensors.
    pub(super) fn write(
        &self,
        step: u64,
        nth: usize,
        part: &[Snapshot],
    ) -> Result<Option<Shard>, Fault> {
        if part.is_empty() {
            return Ok(None);
        }
        let written = write_shard(&self.disk, &self.folder_of(step), nth, part);
        written.map(Some).map_err(|e| self.fault(step, &e))
    }

    /// Makes a checkpoint of the files that have been written, which `manifest` names, and removes older ones.
    pub(super) fn publish(&self, manifest: Manifest) -> Result<PathBuf, Fault> {
        let step = manifest.step;
        let folder = self.folder_of(step);
        let publish = || {
            let text = manifest.to_text()?;
            self.disk.write(&folder.join(MANIFEST), |out| out.write_all(text.as_bytes()))?;
            self.disk.sync_dir(&folder)?;
            self.disk.sync_dir(&self.folder)
        };
        publish().map_err(|e: io::Error| {
            self.discard(step);
            self.fault(step, &e)
        })?;
        self.prune().map_err(|e| io_fault("checkpoints", &self.folder, &e))?;
        Ok(folder)
    }

    /// Removes the files of a checkpoint that cannot be finished.
    pub(super) fn discard(&self, step: u64) {
        let _ = self.disk.remove_dir(&self.folder_of(step)); // the error that counts is the first
    }

    fn fault(&self, step: u64, error: &io::Error) -> Fault {
        tensors::fault("checkpoint", &self.folder_of(step), error, "no checkpoint is saved")
    }

    /// Removes checkpoints older than the last ones, and interrupted saves before them. Of a
    /// symbolic link only the link itself is removed.
    fn prune(&self) -> io::Result<()> {
        let entries = self.entries()?;
        let mut whole = entries.iter().rev().filter(|entry| entry.is_whole).map(|entry| entry.step);
        let newest = whole.next().unwrap_or(0);
        let oldest = whole.nth(self.keep - 2).unwrap_or(0);
        let is_old =
            |entry: &&Entry| if entry.is_whole { entry.step < oldest } else { entry.step < newest };
        for Entry { folder, is_whole, .. } in entries.iter().filter(is_old) {
            if *is_whole && !folder.is_symlink() {
                self.disk.remove_file(&folder.join(MANIFEST))?; // half a checkpoint must not look whole
            }
            self.disk.remove_dir(folder)?;
        }
        Ok(())
    }

    /// Renames a checkpoint that cannot be used, so that it no longer counts as kept and its name is free.
    fn put_aside(&self, folder: &Path, tell: &dyn Fn(&str)) {
        let aside = folder.with_extension("broken");
        let _ = self.disk.remove_dir(&aside);
        tell(&match self.disk.rename(folder, &aside) {
            Ok(()) => format!("{} is put aside as {}", folder.display(), aside.display()),
            Err(e) => format!("{} cannot be put aside: {e}", folder.display()),
        });
    }

    fn folder_of(&self, step: u64) -> PathBuf {
        self.folder.join(format!("step-{step:08}"))
    }
}

fn write_shard(disk: &Disk, folder: &Path, nth: usize, part: &[Snapshot]) -> io::Result<Shard> {
    let file = format!("shard-{nth:04}.safetensors");
    let named = part.iter().flat_map(|Snapshot { param, weights, state }| {
        let kept = state.iter().map(|StateTensor { name, shape, elements }| {
            (state_of(&param.name, name), shape, elements)
        });
        let each = once((param.name.clone(), &param.shape, weights)).chain(kept);
        each.map(|(name, shape, Elements { dtype, words })| NamedTensor {
            name,
            shape: shape.clone(),
            dtype: *dtype,
            words,
        })
    });
    let written = tensors::write(disk, &folder.join(&file), named.collect(), None)?;
    Ok(Shard { file, bytes: written.bytes, blake3: written.blake3 })
}

pub(super) fn writer_died() -> Fault {
    Fault::new(Class::Internal, Rank(0), "the writer of checkpoints died")
}
