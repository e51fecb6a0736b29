//! A whole run in its folder, in one call.

use std::sync::atomic::AtomicBool;

use anyhow::{Result, ensure};
use chimera_core::engine::StepReport;

use super::{Place, Run, Subject, Trained};
use crate::formats::checkpoint::Checkpoint;
use crate::observe::Metrics;

impl<S: Subject> Run<S> {
    /// Trains in the folder that the settings name, with a thread for each rank: goes on from a checkpoint if `resume`
    /// says so, keeps settings, metrics and checkpoints, and if the run fails, why. `stop` ends it with a
    /// checkpoint of the last whole step. `tell` is told of what goes wrong beside the training, and `observe` of every
    /// step; an error of `observe` ends the run.
    ///
    /// # Errors
    /// If another run is at work in the folder, if a checkpoint cannot be used or is of another training, if no step is
    /// left, or if the training fails.
    pub fn train_in_folder(
        &mut self,
        stop: &AtomicBool,
        tell: impl Fn(&str) + Clone + Send + Sync + 'static,
        mut observe: impl FnMut(&StepReport) -> Result<()> + Send,
    ) -> Result<Trained> {
        let place = Place::claim(self.config())?;
        let open = &mut |path: &_| Ok(Checkpoint::open(path)?);
        let checkpoint = place.checkpoint(self.config(), &tell, open)?;
        self.resume(checkpoint)?;
        let (first, steps) = (self.first_step(), self.config().steps);
        ensure!(first < steps, "all {steps} steps are trained: raise steps to go on");
        self.save_into(place.store(), tell.clone());
        let mut folder = place.begin(self.config(), first, &tell)?;
        let explain = self.explain_in(folder.path());
        let trained = self.train(stop, |report| {
            folder.record(&Metrics::of(report, self.tokens_per_step(), None))?;
            observe(report)
        });
        if let Err(error) = &trained {
            let also = folder.write_failure(error, Some(&*explain));
            also.iter().for_each(|error| tell(&format!("{error:#}")));
        }
        trained
    }
}
