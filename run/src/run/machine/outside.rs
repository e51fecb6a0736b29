//! Inputs of the settings from this machine: its files, its environment, its cores.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use chimera_core::model::Lora;
use chimera_core::timetable::Timetable;
use chimera_device::n_cores;
use chimera_formats::files::text_at_most;
use chimera_formats::hf::read_config;
use chimera_formats::hub::{Part, folder_of, known_folder_of};
use chimera_formats::peft::PeftAdapter;
use chimera_formats::timetable::read;
use chimera_settings::{Config, Origin, Outside, SettingsError, Start};
use toml::Value;

use super::cores::cores_of;
use super::launch::Launch;
use crate::data::{Marks, Prepared, missing_ids};
use crate::run::dir::history::planned_checkpoint;
use crate::run::dir::layout::MAX_SETTINGS;

/// The most workers of a pipeline by default, and the least: there is no pipeline of one.
const DEFAULT_WORKERS: [i64; 2] = [4, 2];

/// This machine.
pub struct OnDisk;

impl Outside for OnDisk {
    fn settings(&self, path: &Path) -> Result<String, String> {
        let text = text_at_most(path, MAX_SETTINGS);
        let text = text.map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        text.ok_or_else(|| format!("{} is larger than {MAX_SETTINGS} bytes", path.display()))
    }

    fn identity(&self, path: &Path) -> PathBuf {
        path.canonicalize().unwrap_or_else(|_| path.to_path_buf()) // a pipe has no canonical path
    }

    fn timetable(&self, path: &Path) -> Result<Timetable> {
        read(path).with_context(|| format!("timetable {}", path.display()))
    }

    fn start(&self, init: &Path, resume: Option<&str>, out: Option<&Path>) -> Result<Start> {
        let resumed = resume.map(|resume| planned_checkpoint(resume, out)).transpose()?.flatten();
        if let Some((path, manifest)) = resumed {
            let (folder, origin) = (known_folder_of(init), Origin::Checkpoint(path));
            let (model, dropout) = manifest.model().with_context(|| origin.to_string())?;
            return Ok(Start { folder, origin, model, dropout: Some(dropout) });
        }
        let folder = folder_of(init, Part::Texts)?;
        let origin = Origin::Model(folder.clone());
        let (model, dropout) = read_config(&folder).with_context(|| origin.to_string())?;
        Ok(Start { folder, origin, model, dropout: dropout.one() })
    }

    fn adapter(&self, dir: &Path) -> Result<Lora> {
        let adapter =
            PeftAdapter::open(dir).with_context(|| format!("adapter {}", dir.display()))?;
        Ok(adapter.lora().clone())
    }

    fn ids(&self, data: &[PathBuf], is_bert: bool) -> Result<Option<(PathBuf, String, usize)>> {
        let Some((path, prepared)) = Prepared::of(data)? else { return Ok(None) };
        let n_ids = if is_bert {
            Marks::of(&prepared.tokenizer(path)?).vocab(prepared.vocab)
        } else {
            prepared.vocab
        };
        Ok(Some((path.to_path_buf(), prepared.name().to_string(), n_ids)))
    }

    fn before(&self, option: &str, resume: &str, out: Option<&Path>) -> Option<Value> {
        let (_, manifest) = planned_checkpoint(resume, out).ok()??;
        manifest.value(option).ok()
    }

    /// Ranks that a launcher started are as many as it was asked for, whatever the cores.
    fn workers(&self, width: i64) -> Option<i64> {
        let [most, least] = DEFAULT_WORKERS;
        let has_cores = n_cores() as i64 >= most.saturating_mul(width);
        launched().is_none().then_some(if has_cores { most } else { least })
    }

    /// Ranks on several hosts are assumed to have cores of their own: all ranks must get the same answer.
    fn has_cores(&self, n_workers: i64) -> bool {
        match launched() {
            None => n_cores() as i64 >= n_workers,
            Some(Launch { n_ranks, n_local, .. }) if n_local == Some(n_ranks) => {
                cores_of(n_ranks as usize) >= n_ranks as usize
            }
            Some(_) => true,
        }
    }

    /// If the launcher does not say where ranks run, all may be on this host.
    fn threads(&self, n_workers: i64) -> i64 {
        match launched() {
            None => n_cores() as i64 / n_workers.max(1),
            Some(launch) => {
                let n_local = launch.n_local.unwrap_or(launch.n_ranks) as usize;
                (cores_of(n_local) / n_local) as i64
            }
        }
    }
}

/// Returns the launch, if it has several processes: the ranks of one job.
fn launched() -> Option<Launch> {
    Launch::found().filter(|launch| launch.n_ranks > 1)
}

/// Refuses settings whose vocabulary size follows from data that does not exist on this machine.
///
/// # Errors
/// [`SettingsError`], which names the data.
pub fn must_know_vocab(config: &Config) -> Result<(), SettingsError> {
    let origin = |key| config.value(key).map(|(_, origin)| origin);
    let is_open = matches!(origin("vocab"), Some(Origin::Preset(_)));
    let Some(path) = missing_ids(&config.data.files).filter(|_| is_open) else { return Ok(()) };
    let place = origin("data").map(Origin::to_string).unwrap_or_default();
    let message = format!(
        "the vocabulary follows from {}, which is not here: say `vocab`, or run where the data is",
        path.display()
    );
    Err(SettingsError { place, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command that resumes a run reads the run's settings file.
    #[test]
    fn settings_may_be_as_long_as_those_of_a_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        for (n_bytes, is_read) in [(MAX_SETTINGS, true), (MAX_SETTINGS + 1, false)] {
            std::fs::write(&path, "#".repeat(n_bytes as usize)).unwrap();
            assert_eq!(OnDisk.settings(&path).is_ok(), is_read);
            assert_eq!(crate::run::settings_in(folder.path()).is_ok(), is_read);
        }
        let refusal = OnDisk.settings(&path).unwrap_err();
        assert_eq!(refusal, format!("{} is larger than 16777216 bytes", path.display()));
        assert!(OnDisk.settings(folder.path()).unwrap_err().starts_with("cannot read "));
    }
}
