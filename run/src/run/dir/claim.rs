//! The folder of a run before anything is written there: found or made, and locked; and whether the
//! files at the place of its model may be replaced.

use std::fs::{create_dir_all, remove_dir};
use std::path::{Path, PathBuf, absolute};

use anyhow::{Context, Result, bail, ensure};
use chimera_formats::checkpoint::{AUTO, Checkpoint, Open, Store};
use chimera_formats::files::disk::remove_parts;
use chimera_formats::files::{self, LOST, io_fault, text_regular};
use chimera_formats::save::{Claim, holds_model, prepare, remove_half_written, saved_steps};
use chimera_settings::{Config, MODEL};
use serde_json::Value;

use super::history::{forked_from, unusable_fork};
use super::layout::{
    MAX_SETTINGS, RUNS, SETTINGS, SUMMARY, check_whole, fresh, is_same, path_in, remove_leftovers,
    settings_in,
};
use super::lock::{Lock, is_at_work};
use super::outputs::{check_nested, check_places};
use crate::data::tokenizer::TOKENIZER;

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

    /// Returns the checkpoint that `config` wants to continue from. Returns `None` if it wants none;
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

impl Place {
    /// Makes sure that weights can go where `config` says. An existing model is replaced only if this run
    /// `has_saved` it, and a folder that another run has claimed is taken only if that run is no longer at work.
    pub(crate) fn prepare_weights(&self, config: &Config, has_saved: bool) -> Result<()> {
        self.prepare_weights_of(&self.path, config, has_saved)
    }

    /// Makes sure that the weights of a checkpoint with no steps left to train can go where
    /// `config` says. They belong to the run of the checkpoint; this run may have no settings, and
    /// its folder may be gone again.
    ///
    /// # Errors
    /// If other files are there, or the folder cannot be written to.
    pub fn prepare_kept(&self, config: &Config, checkpoint: &Path) -> Result<()> {
        check_places(config, &self.path, self.store().folder())?;
        let whole = absolute(checkpoint).unwrap_or_else(|_| checkpoint.to_path_buf());
        let run = whole.ancestors().nth(2).filter(|run| Store::of(run).holds(checkpoint));
        match (&config.checkpoints.save, run.filter(|run| !is_same(run, &self.path))) {
            (Some(dir), Some(run)) => {
                let is_of_run = |claim: Claim| claim.has_saved && is_same(&claim.run, run);
                let has_saved = Claim::of(dir)?.is_some_and(is_of_run);
                self.prepare_weights_of(run, config, has_saved)
            }
            _ => self.prepare_weights(config, self.has_saved(config)),
        }
    }

    /// Makes sure that the weights of a run can go where `config` says.
    fn prepare_weights_of(&self, run: &Path, config: &Config, has_saved: bool) -> Result<()> {
        let Some(dir) = config.weights_dir(&self.path) else { return Ok(()) };
        let claim = Claim::of(&dir)?;
        if let Some(other) = claim.as_ref().filter(|claim| !self.is_of(claim)) {
            if self.is_again {
                return Ok(()); // a current run goes on, and its weights will go into its own folder
            }
            ensure!(
                !is_at_work(&other.run),
                "{} is where the run in {} saves its model, and it is at work: choose another folder",
                dir.display(),
                other.run.display()
            );
        }
        match &config.checkpoints.save {
            Some(dir) => prepare(dir, has_saved)?,
            // The run's own folder is made when there are weights.
            None => ensure!(
                has_saved || !holds_model(&dir),
                "{} holds a model already, which the weights of this run would replace: choose another --out, name \
                 another folder with --save, or leave them out with --no-save",
                dir.display()
            ),
        }
        if config.checkpoints.save.is_some() || claim.is_some() {
            let has_saved = claim.is_some_and(|c| c.has_saved && is_same(&c.run, run));
            Claim::make(&dir, run, has_saved)?;
        }
        remove_half_written(&dir);
        remove_parts(&dir, &[TOKENIZER]);
        Ok(())
    }

    /// Returns true if a claim belongs to the run in this folder.
    fn is_of(&self, claim: &Claim) -> bool {
        is_same(&claim.run, &self.path)
    }

    /// Returns true if a model where `config` wants the weights belongs to this run.
    pub(crate) fn has_saved(&self, config: &Config) -> bool {
        let Some(dir) = config.weights_dir(&self.path) else { return false };
        let is_here = self.goes_on(config);
        let claim = Claim::of(&dir).ok().flatten();
        if config.checkpoints.save.is_some() {
            let is_claimed = claim.is_some_and(|claim| claim.has_saved && self.is_of(&claim));
            return self.is_again || is_here && is_claimed;
        }
        if claim.is_some_and(|claim| !self.is_of(&claim)) {
            return self.is_again;
        }
        let is_marked = || is_here && saved_steps(&dir).is_some();
        let was_wanted = |before: toml::Table| {
            let kept = before.get("no-save").and_then(toml::Value::as_bool) != Some(true);
            let own = self.path.join(MODEL);
            kept && is_same(path_in(&before, "save").unwrap_or(&own), &dir)
        };
        self.is_again || self.before(config).is_some_and(was_wanted) || is_marked()
    }
}
