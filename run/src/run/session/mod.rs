//! A training in its folder, in phases, each made from the one before. A run is [prepared](Run::prepare),
//! its folder [claimed](Run::claim), the run [resumed](Claimed::resume) and [begun](Resumed::begin). Runs
//! of threads and runs of processes go through the same phases; [`RunRanks`] holds the differences.

mod conclude;
mod processes;
mod ranks;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use chimera_core::engine::StepReport;

pub use conclude::conclude;
pub use processes::{Processes, check_ranks, together};
pub use ranks::{InThreads, RunRanks};

use chimera_formats::checkpoint::Store;
use chimera_settings::Config;

use super::{Folder, Place, Run, Subject, Trained};
use crate::observe::{Explain, Metrics};

/// A run whose folder belongs to it: no other run can write there.
pub struct Claimed<'r, S, R> {
    run: &'r mut Run<S>,
    ranks: R,
    /// The locked folder, on the rank that leads.
    place: Option<Place>,
    path: PathBuf,
}

/// A run whose first step is known: it continues from a checkpoint, or begins at the start.
pub struct Resumed<'r, S, R> {
    /// The run.
    pub run: &'r mut Run<S>,
    /// Ranks of the run.
    pub ranks: R,
    /// The locked folder, on the rank that leads.
    pub place: Option<Place>,
    /// The checkpoint that it continues from.
    pub from: Option<PathBuf>,
    /// A description of each setting that changes at the checkpoint.
    pub changes: Vec<String>,
    path: PathBuf,
}

/// A run that writes into its folder, and is ready for its first step.
pub struct Begun<'r, S, R> {
    /// The run.
    pub run: &'r mut Run<S>,
    /// Ranks of the run.
    pub ranks: R,
    /// Folder of the run, on the rank that leads.
    pub folder: Option<Folder>,
    /// The last ops of each rank, written if the run fails.
    pub explain: Arc<Explain>,
    path: PathBuf,
}

impl<S: Subject> Run<S> {
    /// Claims the folder that the settings name. All ranks call it.
    ///
    /// # Errors
    /// If another run is at work in the folder, or it cannot be made.
    pub fn claim<R: RunRanks<S>>(&mut self, ranks: R) -> Result<Claimed<'_, S, R>> {
        self.claim_by(ranks, Place::claim)
    }

    /// Claims a folder by `claim`, on the rank that leads.
    ///
    /// # Errors
    /// Fails as `claim` does.
    pub fn claim_by<R: RunRanks<S>>(
        &mut self,
        mut ranks: R,
        claim: impl FnOnce(&Config) -> Result<Place>,
    ) -> Result<Claimed<'_, S, R>> {
        let place = ranks.leads().then(|| claim(self.config())).transpose();
        let place = ranks.together(place)?;
        let path = ranks.folder(place.as_ref())?;
        Ok(Claimed { run: self, ranks, place, path })
    }
}

impl<'r, S: Subject, R: RunRanks<S>> Claimed<'r, S, R> {
    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Finds the checkpoint that the settings want, and begins there. All ranks call it. Calls `warn` for
    /// checkpoints that cannot be used.
    ///
    /// # Errors
    /// If a checkpoint cannot be used, is of another training, or the ranks are about to train different things.
    pub fn resume(self, warn: &dyn Fn(&str)) -> Result<Resumed<'r, S, R>> {
        let Claimed { run, mut ranks, place, path } = self;
        let checkpoint = ranks.checkpoint(run.config(), place.as_ref(), warn);
        let checkpoint = ranks.together(checkpoint)?;
        let from = checkpoint.as_ref().map(|checkpoint| checkpoint.path().to_path_buf());
        let changes = run.resume(checkpoint);
        let changes = ranks.together(changes)?;
        let agreed = ranks.agree(run);
        ranks.together(agreed)?;
        Ok(Resumed { run, ranks, place, from, changes, path })
    }
}

impl<'r, S: Subject, R: RunRanks<S>> Resumed<'r, S, R> {
    /// Returns true if no step is left to train.
    pub fn is_trained(&self) -> bool {
        self.run.first_step() == self.run.config().training.steps
    }

    /// Lets the run save into `store`, and writes its settings into its folder. All ranks call it.
    /// Calls `warn` for problems that do not stop the run.
    ///
    /// # Errors
    /// If the folder holds another run, or cannot be written.
    pub fn begin(
        self,
        store: Store,
        warn: impl Fn(&str) + Clone + Send + Sync + 'static,
    ) -> Result<Begun<'r, S, R>> {
        let Resumed { run, mut ranks, place, path, .. } = self;
        run.save_into(store, warn.clone());
        let explain = run.explain_in(&path);
        let folder = place.map(|place| place.begin(run.config(), run.first_step(), &warn));
        let folder = ranks.together(folder.transpose())?;
        Ok(Begun { run, ranks, folder, explain, path })
    }

    /// Returns the store in the folder of the run.
    pub fn store(&self) -> Store {
        Store::of(&self.path)
    }
}

impl<S: Subject, R: RunRanks<S>> Begun<'_, S, R> {
    /// Trains the steps that are left, keeps their metrics, and writes the reason if the run fails.
    /// All ranks call it; the rank that leads gets the result of the run. `stop` ends it with a
    /// checkpoint of the last whole step. An error of `observe` ends the run.
    ///
    /// # Errors
    /// If the training fails, here or on another rank.
    pub fn train(
        self,
        stop: &AtomicBool,
        warn: &(dyn Fn(&str) + Sync),
        mut observe: impl FnMut(&StepReport) -> Result<()> + Send,
    ) -> Result<Option<Trained>> {
        let Begun { run, mut ranks, mut folder, explain, path } = self;
        let mut record = |report: &StepReport| {
            if let Some(folder) = &mut folder {
                folder.record(&Metrics::of(report, run.tokens_per_step(), None), &warn)?;
            }
            observe(report)
        };
        let trained = ranks.train(run, stop, &mut record);
        if let Err(error) = &trained {
            let unwritten = match &folder {
                Some(folder) => folder.write_failure(error, Some(&*explain)),
                None => Vec::new(),
            };
            ranks.fail(error, folder.is_none().then_some(&path), &explain);
            unwritten.iter().for_each(|error| warn(&format!("{error:#}")));
        }
        trained
    }
}
