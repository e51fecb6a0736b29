//! The folder of a run before anything is written there: found or made, and locked.

use std::fs::{create_dir_all, remove_dir};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use chimera_formats::checkpoint::{AUTO, Checkpoint, Open, Store};
use chimera_formats::files::{self, LOST, io_fault, text_regular};
use chimera_formats::save::saved_steps;
use chimera_settings::{Config, MODEL};
use serde_json::Value;

use super::claims::check_nested;
use super::lock::Lock;
use super::own_files::{SETTINGS, SUMMARY, remove_leftovers};
use super::planned_checkpoint::{forked_from, unusable_fork};
use super::runs::{RUNS, fresh};
use super::settings_file::{MAX_SETTINGS, check_whole, settings_in};

/// The locked folder of a run that is about to begin.
pub struct Place {
    pub(crate) path: PathBuf,
    /// Folders that were made for it, the innermost first.
    made: Vec<PathBuf>,
    /// Whether the run has begun here before, led by a rank that has died.
    pub(crate) is_again: bool,
    /// The lock, until the place is given up.
    pub(crate) lock: Option<Lock>,
}

impl Drop for Place {
    /// Removes the folders that were made, if nothing was begun in them.
    fn drop(&mut self) {
        drop(self.lock.take());
        for made in &self.made {
            let _ = remove_dir(made); // removes only empty folders
        }
    }
}

impl Place {
    /// Makes the folder that `config` names, or a fresh one under `runs/`, and locks it.
    pub fn claim(config: &Config) -> Result<Place> {
        let is_auto = config.checkpoints.resume.as_deref() == Some(AUTO);
        ensure!(
            !is_auto || config.output.out.is_some(),
            "resume auto needs the folder of the run: name it with --out"
        );
        let (path, made) = match &config.output.out {
            Some(out) => {
                check_nested(out)?;
                let made = absent(out);
                create_dir_all(out)
                    .with_context(|| format!("cannot make folder {}", out.display()))?;
                (out.clone(), made)
            }
            None => {
                check_nested(&Path::new(RUNS).join("0001"))?;
                let path = fresh(Path::new(RUNS))?;
                (path.clone(), vec![path])
            }
        };
        let mut place = Place { path, made, is_again: false, lock: None };
        place.lock = Some(Lock::take(&place.path)?);
        Ok(place)
    }

    /// Takes the folder of a current run over from a rank that has died.
    pub fn take_over(path: PathBuf) -> Result<Place> {
        create_dir_all(&path).with_context(|| format!("cannot make folder {}", path.display()))?;
        let lock = Some(Lock::take(&path)?);
        Ok(Place { path, made: Vec::new(), is_again: true, lock })
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the checkpoint that `config` wants to go on from. Returns `None` if it wants none;
    /// also with `auto`, if none was ever finished and the run did not begin with one. Calls `tell`
    /// for checkpoints that cannot be used, and `open` to open them.
    pub fn checkpoint(
        &self,
        config: &Config,
        tell: &dyn Fn(&str),
        open: &mut Open<'_>,
    ) -> Result<Option<Checkpoint>> {
        let Some(resume) = &config.checkpoints.resume else { return Ok(None) };
        if resume == AUTO {
            let own = self.store().newest_by(tell, open)?;
            return if own.is_some() { Ok(own) } else { self.first_checkpoint(open) };
        }
        let checkpoint = open(Path::new(resume))?;
        let step = checkpoint.manifest().step;
        let newest = self.store().entries()?.into_iter().rfind(|entry| entry.is_whole);
        if let Some(newest) = newest.filter(|newest| newest.step > step) {
            bail!(
                "{} holds a newer checkpoint than {resume}, of step {}: choose another --out, or remove it",
                self.path.display(),
                newest.step
            );
        }
        Ok(Some(checkpoint))
    }

    /// Returns the checkpoint of another run that the run here began with, if any.
    ///
    /// # Errors
    /// If it cannot be used, the settings are not whole, or the run has done all its steps.
    fn first_checkpoint(&self, open: &mut Open<'_>) -> Result<Option<Checkpoint>> {
        if !self.is_again && self.path.join(SETTINGS).exists() {
            check_whole(&self.path)?;
            self.refuse_finished()?;
        }
        let Some(from) = forked_from(&self.path) else { return Ok(None) };
        let opened = open(&from).map_err(|error| match error.downcast() {
            Ok(unusable) => unusable_fork(&self.path, unusable).into(),
            Err(other) => other,
        });
        opened.map(Some)
    }

    /// Refuses to train a run again that has done all its steps and kept no checkpoint.
    fn refuse_finished(&self) -> Result<()> {
        let summary = text_regular(&self.path.join(SUMMARY), MAX_SETTINGS).ok().flatten();
        let summary = summary.and_then(|text| serde_json::from_str::<Value>(&text).ok());
        let done = summary.and_then(|summary| summary["steps"].as_u64());
        let model = self.path.join(MODEL);
        let saved = saved_steps(&model);
        let Some(n_steps) = done.or(saved) else { return Ok(()) };
        let with_its_weights = match saved {
            Some(_) => format!(", with --init {} to go on with its weights", model.display()),
            None => String::new(),
        };
        bail!(
            "nothing is left to train: the run in {} has done its {n_steps} steps, and it kept no checkpoint to go on from. \
             Choose another --out{with_its_weights}; or remove this one to train it again",
            self.path.display()
        )
    }

    /// Returns the store of its checkpoints.
    pub fn store(&self) -> Store {
        Store::of(&self.path)
    }

    /// Writes a file into the folder.
    pub fn write(&self, name: &str, content: &str) -> Result<()> {
        self.check()?;
        let path = self.path.join(name);
        Ok(files::write(&path, content.as_bytes()).map_err(|e| io_fault("file", &path, &e))?)
    }

    /// Checks that the folder is still the one that this run began in.
    pub(crate) fn check(&self) -> Result<()> {
        let lost = || io_fault("into", &self.path, &LOST);
        Ok(self.is_held().then_some(()).ok_or_else(lost)?)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.lock.as_ref().is_some_and(Lock::is_held)
    }

    /// Removes the leftovers of an earlier end of the run: errors, last ops, and partial files.
    pub fn remove_leftovers(&self) -> Result<()> {
        let place =
            || format!("cannot remove the remains of an earlier run in {}", self.path.display());
        remove_leftovers(&self.path).with_context(place)
    }

    /// Returns true if a run that has begun here goes on: its settings are here, or if they are lost, its checkpoints.
    pub fn goes_on(&self, config: &Config) -> bool {
        let has_begun = || self.path.join(SETTINGS).exists() || self.store().has_whole();
        (self.is_again || is_own(config, &self.path)) && has_begun()
    }

    /// Returns the earlier settings of the run that goes on here.
    pub(crate) fn before(&self, config: &Config) -> Option<toml::Table> {
        if self.goes_on(config) { settings_in(&self.path).ok() } else { None }
    }
}

/// Returns the folder and those above it that do not exist, the innermost first.
fn absent(folder: &Path) -> Vec<PathBuf> {
    let up = folder.ancestors().filter(|path| !path.as_os_str().is_empty());
    up.take_while(|path| path.symlink_metadata().is_err()).map(Path::to_path_buf).collect()
}

/// Returns true if a run in `folder` goes on there, rather than begin with the checkpoint of another run.
pub(crate) fn is_own(config: &Config, folder: &Path) -> bool {
    let holds = |resume: &str| Store::of(folder).holds(Path::new(resume));
    config.checkpoints.resume.as_deref().is_some_and(|resume| resume == AUTO || holds(resume))
}
