//! The interface by which settings reach files, the environment and the machine.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use chimera_core::model::{Lora, ModelConfig};
use chimera_core::timetable::Timetable;
use toml::Value;

use crate::Origin;

/// The source of settings that follow from files and from the machine. By default there is nothing.
pub trait Outside {
    /// Returns the text of a file of settings.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    fn settings(&self, path: &Path) -> Result<String, String> {
        unread(path).map_err(|error| error.to_string())
    }

    /// Returns the identity of a file, the same for all spellings of its path.
    fn identity(&self, path: &Path) -> PathBuf {
        path.to_path_buf()
    }

    /// Reads the timetable in a file.
    ///
    /// # Errors
    /// If there is none.
    fn timetable(&self, path: &Path) -> Result<Timetable> {
        unread(path)
    }

    /// Returns the starting point of a run that begins with the model in `init`. If `resume` names
    /// a checkpoint, of `out` or another folder, that comes before the model, which may no longer
    /// exist.
    ///
    /// # Errors
    /// If the model or checkpoint cannot be read.
    fn start(&self, init: &Path, _resume: Option<&str>, _out: Option<&Path>) -> Result<Start> {
        unread(init)
    }

    /// Returns the settings of the adapter in a folder.
    ///
    /// # Errors
    /// If it cannot be read.
    fn adapter(&self, dir: &Path) -> Result<Lora> {
        unread(dir)
    }

    /// Returns the vocabulary size of prepared data, with or without the special tokens of a BERT,
    /// and the file and the tokenizer that determine it.
    ///
    /// # Errors
    /// If the description of the data cannot be read.
    fn ids(&self, _data: &[PathBuf], _is_bert: bool) -> Result<Option<(PathBuf, String, usize)>> {
        Ok(None)
    }

    /// Returns the value of an option in the run that `resume` continues, perhaps from `out`.
    /// Returns `None` if there is no checkpoint, or if it cannot be read: the run reports that
    /// itself.
    fn before(&self, _option: &str, _resume: &str, _out: Option<&Path>) -> Option<Value> {
        None
    }

    /// Returns the workers for each of this number of pipelines, if the cores of this machine decide
    /// that.
    fn workers(&self, _width: i64) -> Option<i64> {
        None
    }

    /// Returns true if each of this number of workers has a core of its own.
    fn has_cores(&self, _n_workers: i64) -> bool {
        true
    }

    /// Returns the CPU threads for each of this number of workers.
    fn threads(&self, _n_workers: i64) -> i64 {
        1
    }
}

/// The initial model of a run.
pub struct Start {
    /// Folder of the model, if it was given by its name on a hub.
    pub folder: PathBuf,
    /// The folder that the model was read from.
    pub origin: Origin,
    /// Sizes of the model.
    pub model: ModelConfig,
    /// Dropout rate of the model; `None` if it has several.
    pub dropout: Option<f64>,
}

/// An empty outside, for settings that name no file.
pub struct Nothing;

impl Outside for Nothing {}

/// The error for a file that is not read.
fn unread<T>(path: &Path) -> Result<T> {
    bail!("{} is not read here", path.display())
}

/// The files that a test has written.
#[cfg(test)]
pub(crate) struct Files;

#[cfg(test)]
impl Outside for Files {
    fn settings(&self, path: &Path) -> Result<String, String> {
        std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
    }

    fn identity(&self, path: &Path) -> PathBuf {
        path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
    }
}
