//! What settings ask of the world outside: files, the environment, the machine.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use chimera_core::model::ModelConfig;
use chimera_core::timetable::Timetable;
use toml::Value;

use crate::settings::Origin;

/// Where settings that follow from files and from the machine are asked for. By default there is nothing.
pub trait Outside {
    /// The text of a file of settings.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn settings(&self, path: &Path) -> Result<String, String> {
        unread(path).map_err(|error| error.to_string())
    }

    /// What a path stands for, the same for every way to write it.
    fn identity(&self, path: &Path) -> PathBuf {
        path.to_path_buf()
    }

    /// The timetable in a file.
    ///
    /// # Errors
    /// If there is none.
    fn timetable(&self, path: &Path) -> Result<Timetable> {
        unread(path)
    }

    /// What a run that begins with the model in `init` begins with: where `resume` names a checkpoint of `out` or
    /// another, that goes before the model, which may be gone.
    ///
    /// # Errors
    /// If that cannot be read.
    fn start(&self, init: &Path, _resume: Option<&str>, _out: Option<&Path>) -> Result<Start> {
        unread(init)
    }

    /// How many ids prepared data has, with the marks of a BERT or without, and the file and the tokenizer that say so.
    ///
    /// # Errors
    /// If its description cannot be read.
    fn ids(&self, _data: &[PathBuf], _is_bert: bool) -> Result<Option<(PathBuf, String, usize)>> {
        Ok(None)
    }

    /// What a run that goes on from the checkpoint `resume`, perhaps of `out`, had for an option; `None` if there is no
    /// checkpoint, or it cannot be read, which is for the run to say.
    fn before(&self, _option: &str, _resume: &str, _out: Option<&Path>) -> Option<Value> {
        None
    }

    /// Whether each of so many workers has a core of its own.
    fn has_cores(&self, _n_workers: i64) -> bool {
        true
    }

    /// CPU threads of each of so many workers.
    fn threads(&self, _n_workers: i64) -> i64 {
        1
    }
}

/// A model to begin with.
pub struct Start {
    /// The folder that says so.
    pub origin: Origin,
    /// Its sizes.
    pub model: ModelConfig,
    /// Its rate of dropout; `None` if it has several.
    pub dropout: Option<f64>,
}

/// Nothing outside, for settings that name no file.
pub struct Nothing;

impl Outside for Nothing {}

/// What there is not, where nothing is read.
fn unread<T>(path: &Path) -> Result<T> {
    bail!("{} is not read here", path.display())
}
