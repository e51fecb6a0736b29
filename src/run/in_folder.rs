//! A whole run in its folder, in one call.

use std::sync::atomic::AtomicBool;

use anyhow::Result;
use chimera_core::engine::StepReport;

use super::{Place, Run, Subject, Trained};
use crate::formats::checkpoint::Checkpoint;
use crate::observe::Metrics;
use crate::settings::said_in_vain;

/// Options that `chimera train` alone reads, at the end of a run or around it.
const OF_THE_COMMAND: [&str; 4] = ["save", "report", "prometheus", "predict"];

impl<S: Subject> Run<S> {
    /// Trains in the folder that the settings name, with a thread for each rank: goes on from a checkpoint if `resume`
    /// says so, keeps settings, metrics and checkpoints, and if the run fails, why. `stop` ends it with a
    /// checkpoint of the last whole step. `tell` is told of what goes wrong beside the training, and `observe` of every
    /// step; an error of `observe` ends the run. Where no step is left, what was trained comes from the checkpoint.
    ///
    /// # Errors
    /// If another run is at work in the folder, if a checkpoint cannot be used or is of another training, or if the
    /// training fails.
    pub fn train_in_folder(
        &mut self,
        stop: &AtomicBool,
        tell: impl Fn(&str) + Clone + Send + Sync + 'static,
        mut observe: impl FnMut(&StepReport) -> Result<()> + Send,
    ) -> Result<Trained> {
        for option in self.unread() {
            tell(&option);
        }
        let place = Place::claim(self.config())?;
        let open = &mut |path: &_| Ok(Checkpoint::open(path)?);
        let checkpoint = place.checkpoint(self.config(), &tell, open)?;
        self.resume(checkpoint)?;
        let (first, steps) = (self.first_step(), self.config().training.steps);
        if first == steps {
            place.remove_leftovers()?;
            return self.trained_before();
        }
        self.save_into(place.store(), tell.clone());
        let mut folder = place.begin(self.config(), first, &tell)?;
        let explain = self.explain_in(folder.path());
        let trained = self.train(stop, |report| {
            folder.record(&Metrics::of(report, self.tokens_per_step(), None), &tell)?;
            observe(report)
        });
        if let Err(error) = &trained {
            let also = folder.write_failure(error, Some(&*explain));
            also.iter().for_each(|error| tell(&format!("{error:#}")));
        }
        trained
    }

    /// What to tell of options that were said, and that nothing reads.
    fn unread(&self) -> Vec<String> {
        let of_the_command = said_in_vain(self.config(), OF_THE_COMMAND);
        let of_the_command = of_the_command.iter().map(|key| (key, "the command `chimera train`"));
        let of_models = self.subject.unread().iter().map(|key| (key, "the models of this program"));
        let unread = of_the_command.chain(of_models);
        unread.map(|(key, whose)| format!("`{key}` has no effect: it is for {whose}")).collect()
    }
}
