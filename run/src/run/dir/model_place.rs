//! The place of a run's model, and whether the files there may be replaced.

use std::path::{Path, absolute};

use anyhow::{Result, ensure};
use chimera_formats::checkpoint::Store;
use chimera_formats::files::disk::remove_parts;
use chimera_formats::save::{Claim, holds_model, prepare, remove_half_written, saved_steps};
use chimera_settings::{Config, MODEL};

use super::claims::check_places;
use super::lock::is_at_work;
use super::place::Place;
use super::settings_file::{is_same, path_in};
use crate::data::tokenizer::TOKENIZER;

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
