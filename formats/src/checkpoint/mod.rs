//! Checkpoints: the state of a training on disk, from which it goes on as if it had never been interrupted.
//!
//! A checkpoint is a folder of safetensors files and a manifest. Each worker that holds the first replica
//! of a tensor writes it with its optimizer state, under the tensor's name (`wte.weight`, `wte.weight.m`,
//! `wte.weight.v`). So the checkpoint opens under any D, W and schedule. The manifest names every file with
//! size and hash and is published last: a folder without one is a save that was interrupted.

mod manifest;
mod saver;
mod share;
mod store;
mod writer;

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, symlink_metadata};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use chimera_core::device::Elements;
use chimera_core::engine::{Optimizer, Snapshot, StateTensor};
use chimera_core::stage::Param;
use serde::{Deserialize, Serialize};

pub use crate::files::disk::{Disk, Written};
pub use manifest::{Digest, FORMAT, MANIFEST, Manifest, Shard, moments};
pub use saver::{Saver, State};
pub use share::{AllGather, Share};
pub use store::{Entry, Store};

pub use crate::files::tensors::bytes;

use crate::files::tensors::types::{is_of, unpacked};
use crate::files::tensors::{self, NamedTensor, TensorFile};

/// The value of `resume` that takes the newest checkpoint of a run.
pub const AUTO: &str = "auto";

/// The reason why a checkpoint cannot be used (exit code 4).
#[derive(thiserror::Error, Serialize, Deserialize, Clone, PartialEq, Debug)]
#[error("{}: {reason}", path.display())]
pub struct Unusable {
    /// The file or folder.
    pub path: PathBuf,
    /// Description of the problem.
    pub reason: String,
    /// The kind of defect, which decides if an older checkpoint may be used instead.
    pub kind: Defect,
}

/// The kind of defect of an [`Unusable`] checkpoint.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Defect {
    /// Files are missing, or differ from what was written. The search continues with an older
    /// checkpoint.
    Damaged,
    /// This program or this system cannot read the checkpoint, which may be sound. The search ends,
    /// and the checkpoint stays where it is.
    Unread,
}

impl Unusable {
    /// Returns an error for damage.
    fn new(path: &Path, reason: impl Into<String>) -> Unusable {
        Unusable { path: path.to_path_buf(), reason: reason.into(), kind: Defect::Damaged }
    }

    /// Returns an error for a checkpoint that may be sound.
    fn unread(path: &Path, reason: impl Into<String>) -> Unusable {
        Unusable { kind: Defect::Unread, ..Unusable::new(path, reason) }
    }

    /// Returns the error for a file that could not be read. A missing file, or one of another kind
    /// or content, is damage.
    fn of_io(path: &Path, error: &io::Error) -> Unusable {
        let is_damage = match error.raw_os_error() {
            Some(_) => error.kind() == io::ErrorKind::NotFound,
            None => error.kind() != io::ErrorKind::OutOfMemory, // the content is wrong
        };
        if is_damage {
            Unusable::new(path, error.to_string())
        } else {
            Unusable::unread(path, format!("it cannot be read: {error}"))
        }
    }

    /// Returns true if files are missing, or differ from what was written.
    pub fn is_damage(&self) -> bool {
        self.kind == Defect::Damaged
    }
}

/// A tensor of a sound checkpoint with a value that no model can use (exit code 7).
#[derive(thiserror::Error, Clone, PartialEq, Debug)]
#[error("{}: {name} has values that are not finite: choose an earlier checkpoint", file.display())]
pub struct Diverged {
    /// The file that holds it.
    pub file: PathBuf,
    /// The tensor.
    pub name: String,
}

/// Opens the checkpoint in a folder; an error that is not [damage](Unusable::is_damage) ends the search for another.
pub type Open<'o> = dyn FnMut(&Path) -> anyhow::Result<Checkpoint> + 'o;

/// A checkpoint whose every byte was verified, by this process or together with others.
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
    files: Vec<TensorFile>,
    /// Index of the file of each tensor, by name.
    index: HashMap<String, usize>,
}

impl Checkpoint {
    /// Opens the checkpoint in a folder, and reads all of it once to verify it.
    pub fn open(path: &Path) -> Result<Checkpoint, Unusable> {
        Checkpoint::open_part(path, 0, 1)
    }

    /// Opens a checkpoint as the `nth` of `n` processes. Each reads every `n`th file whole, and
    /// only the headers of the others.
    pub fn open_part(path: &Path, nth: usize, n: usize) -> Result<Checkpoint, Unusable> {
        let manifest = Manifest::read(path)?;
        let mut files = Vec::new();
        for (at, shard) in manifest.shards.iter().enumerate() {
            files.push(verify(&path.join(&shard.file), shard, at % n == nth)?);
        }
        let mut index = HashMap::new();
        for (nth, file) in files.iter().enumerate() {
            index.extend(file.tensors().map(|(name, _)| (name, nth)));
        }
        Ok(Checkpoint { path: path.to_path_buf(), manifest, files, index })
    }

    /// Returns its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the name and shape of every tensor of the model.
    pub fn shapes(&self) -> BTreeMap<String, Vec<usize>> {
        let all = self.files.iter().flat_map(TensorFile::shapes);
        all.filter(|(name, _)| !self.is_state(name)).collect()
    }

    /// Returns true if a tensor is optimizer state of another one.
    fn is_state(&self, name: &str) -> bool {
        name.rsplit_once('.').is_some_and(|(of, kept)| {
            self.manifest.optimizer_state.iter().any(|known| known == kept)
                && self.index.contains_key(of)
        })
    }

    /// Returns the weights of a tensor of this shape, row-major.
    pub fn weights(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Unusable> {
        Ok(self.elements(name, shape)?.to_f32(shape.iter().product()))
    }

    /// Returns the elements of a tensor of this shape, row-major, in the type that they were trained in.
    pub fn elements(&self, name: &str, shape: &[usize]) -> Result<Elements, Unusable> {
        let lacks = || Unusable::new(&self.path, format!("it lacks {name}"));
        let nth = *self.index.get(name).ok_or_else(lacks)?;
        elements(&self.files[nth], name, shape)
    }

    /// Returns the elements of a tensor of this shape, after checking that all are finite.
    ///
    /// # Errors
    /// [`Unusable`] or [`Diverged`].
    pub fn finite_elements(&self, name: &str, shape: &[usize]) -> anyhow::Result<Elements> {
        let elements = self.elements(name, shape)?;
        let file = self.index.get(name).and_then(|nth| self.files.get(*nth));
        match (elements.dtype.is_finite(&elements.words), file) {
            (false, Some(file)) => {
                Err(Diverged { file: file.path().to_path_buf(), name: name.into() }.into())
            }
            _ => Ok(elements),
        }
    }

    /// Returns a tensor with its state in `optimizer`.
    pub fn tensor(&self, param: &Param, optimizer: &Optimizer) -> Result<Snapshot, Unusable> {
        let Param { name, shape, .. } = param;
        let kept = optimizer.kept(param).iter().enumerate().map(|(index, kept)| {
            let shape = optimizer.state_shape(param, index);
            let elements = self.elements(&state_of(name, kept), &shape)?;
            Ok(StateTensor { name: kept, shape, elements })
        });
        Ok(Snapshot {
            param: param.clone(),
            weights: self.elements(name, shape)?,
            state: kept.collect::<Result<_, Unusable>>()?,
        })
    }

    /// Writes only the weights, as one safetensors file that any other program reads.
    ///
    /// # Errors
    /// If they are not finite, cannot be read, or cannot be written.
    pub fn export(&self, to: &Path) -> anyhow::Result<Written> {
        let shapes = self.shapes();
        let mut values = Vec::new();
        for (name, shape) in &shapes {
            values.push(unpacked(self.finite_elements(name, shape)?, shape));
        }
        let named = shapes.into_iter().zip(&values);
        let named = named.map(|((name, shape), Elements { dtype, words })| NamedTensor {
            name,
            shape,
            dtype: *dtype,
            words,
        });
        let written = tensors::write(&Disk::default().into_pipes(), to, named.collect(), None);
        written.with_context(|| format!("cannot write weights {}", to.display()))
    }
}

/// Returns the elements of a tensor, which must have this shape.
fn elements(file: &TensorFile, name: &str, shape: &[usize]) -> Result<Elements, Unusable> {
    let unusable = |reason: String| Unusable::new(file.path(), reason);
    let tensor = file.tensor(name).ok_or_else(|| unusable(format!("{name} is not there")))?;
    let found = || {
        unusable(format!(
            "{name} is {:?} of shape {:?}, not numbers of shape {shape:?}",
            tensor.dtype, tensor.shape
        ))
    };
    let read = file.elements(tensor).map_err(|e| {
        let Unusable { path, reason, kind } = Unusable::of_io(file.path(), &e);
        Unusable { path, reason: format!("{name}: {reason}"), kind }
    });
    read?.filter(|elements| is_of(elements, tensor, shape)).ok_or_else(found)
}

/// Returns the name of a tensor's optimizer state `kept`.
pub fn state_of(name: &str, kept: &str) -> String {
    format!("{name}.{kept}")
}

/// Checks size and header of a file, and its hash if it is to be read.
fn verify(path: &Path, shard: &Shard, is_read: bool) -> Result<TensorFile, Unusable> {
    let unusable = |reason: String| Unusable::new(path, reason);
    let unread = |e: io::Error| Unusable::of_io(path, &e);
    let found = symlink_metadata(path).map_err(unread)?;
    if !found.is_file() {
        return Err(unusable("it is not a regular file".into()));
    }
    if found.len() != shard.bytes {
        let (found, meant) = (found.len(), shard.bytes);
        return Err(unusable(format!("it has {found} bytes, but the manifest says {meant}")));
    }
    let file = File::open(path).map_err(unread)?;
    if is_read {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file).map_err(unread)?;
        if hasher.finalize().to_string() != shard.blake3 {
            return Err(unusable("its content is not what was written: the hash differs".into()));
        }
    }
    TensorFile::open(path).map_err(unread)
}

/// Returns true if a folder has a manifest.
fn has_manifest(folder: &Path) -> io::Result<bool> {
    match folder.join(MANIFEST).try_exists() {
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => Ok(false),
        found => found,
    }
}

/// Returns true if a folder is named like a checkpoint.
fn is_step(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-"))
}

fn no_manifest(path: &Path) -> String {
    let entries = Store::of(path).entries().unwrap_or_default();
    match entries.into_iter().rfind(|entry| entry.is_whole) {
        Some(newest) => {
            format!("it is not a checkpoint: did you mean {}?", newest.path().display())
        }
        None if !path.exists() => "there is no such folder".into(),
        None if !path.is_dir() => "it is a file: name a folder".into(),
        None if is_step(path) => format!("it has no {MANIFEST}: its save was interrupted"),
        None => format!("it has no {MANIFEST}: it is neither a checkpoint nor a run with one"),
    }
}
