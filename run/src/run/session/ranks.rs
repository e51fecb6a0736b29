//! The ranks of a run, as one process sees them: what they do together before and after the training.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use chimera_formats::checkpoint::Checkpoint;
use chimera_settings::Config;

use crate::observe::Explain;
use crate::run::progress::watch::Observer;
use crate::run::{Place, Run, Subject, Trained};

/// The ranks of a run: [threads](InThreads) of this process, or [processes](super::Processes).
pub trait RunRanks<S: Subject> {
    /// Returns true if this process leads: it owns the folder of the run, observes its steps, and gets its result.
    fn leads(&self) -> bool;

    /// Makes an error of any rank the error of all.
    fn together<T>(&mut self, own: Result<T>) -> Result<T>;

    /// Returns the run's folder on all ranks; only the rank that leads has its `place`.
    fn folder(&mut self, place: Option<&Place>) -> Result<PathBuf>;

    /// Returns the checkpoint that [`Place::checkpoint`] finds on the rank that leads.
    fn checkpoint(
        &mut self,
        config: &Config,
        place: Option<&Place>,
        warn: &dyn Fn(&str),
    ) -> Result<Option<Checkpoint>>;

    /// Refuses ranks that are about to train different things.
    fn agree(&mut self, run: &Run<S>) -> Result<()>;

    /// Trains the rows of this process.
    fn train(
        &mut self,
        run: &Run<S>,
        stop: &AtomicBool,
        observe: &mut Observer<'_>,
    ) -> Result<Option<Trained>>;

    /// Ends the training of the other ranks after an `error` of this one, and writes the error into
    /// a folder that another rank owns.
    fn fail(&mut self, error: &anyhow::Error, folder: Option<&PathBuf>, explain: &Explain);
}

/// All ranks as threads of this process.
pub struct InThreads;

impl<S: Subject> RunRanks<S> for InThreads {
    fn leads(&self) -> bool {
        true
    }

    fn together<T>(&mut self, own: Result<T>) -> Result<T> {
        own
    }

    fn folder(&mut self, place: Option<&Place>) -> Result<PathBuf> {
        let place = place.context("the one process of a run leads")?;
        Ok(place.path().to_path_buf())
    }

    fn checkpoint(
        &mut self,
        config: &Config,
        place: Option<&Place>,
        warn: &dyn Fn(&str),
    ) -> Result<Option<Checkpoint>> {
        let Some(place) = place else { return Ok(None) };
        place.checkpoint(config, warn, &mut |path| Ok(Checkpoint::open(path)?))
    }

    fn agree(&mut self, _: &Run<S>) -> Result<()> {
        Ok(())
    }

    fn train(
        &mut self,
        run: &Run<S>,
        stop: &AtomicBool,
        observe: &mut Observer<'_>,
    ) -> Result<Option<Trained>> {
        run.train(stop, observe).map(Some)
    }

    fn fail(&mut self, _: &anyhow::Error, _: Option<&PathBuf>, _: &Explain) {}
}
