//! A whole run in its folder, in one call.

use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use chimera_core::engine::StepReport;
use chimera_settings::said_in_vain;

use super::{InThreads, Run, RunRanks, Subject, Trained};

/// Options that only `chimera train` reads, at the end of a run or around it.
const OF_THE_COMMAND: [&str; 4] = ["save", "report", "prometheus", "predict"];

impl<S: Subject> Run<S> {
    /// Trains in the folder that the settings name, with a thread for each rank. Goes on from a
    /// checkpoint if `resume` says so. Keeps settings, metrics and checkpoints in the folder, and
    /// the reason if the run fails. `stop` ends the run with a checkpoint of the last whole step.
    /// Calls `tell` for problems that do not stop the run and `observe` after every step; an error
    /// of `observe` ends the run. If no step is left, the trained weights come from the checkpoint.
    ///
    /// # Errors
    /// If another run is at work in the folder, if a checkpoint cannot be used or is of another
    /// training, or if the training fails.
    pub fn train_in_folder(
        &mut self,
        stop: &AtomicBool,
        tell: impl Fn(&str) + Clone + Send + Sync + 'static,
        observe: impl FnMut(&StepReport) -> Result<()> + Send,
    ) -> Result<Trained> {
        let trained = self.train_in_folder_of(InThreads, stop, tell, observe)?;
        trained.context("the one process of a run leads")
    }

    /// Like [`train_in_folder`](Run::train_in_folder), on each of the `ranks` of a run. The rank
    /// that leads gets the result of the run.
    ///
    /// # Errors
    /// As for one process, and if another rank fails.
    pub fn train_in_folder_of<R: RunRanks<S>>(
        &mut self,
        ranks: R,
        stop: &AtomicBool,
        tell: impl Fn(&str) + Clone + Send + Sync + 'static,
        observe: impl FnMut(&StepReport) -> Result<()> + Send,
    ) -> Result<Option<Trained>> {
        if ranks.leads() {
            self.unread().iter().for_each(|option| tell(option));
        }
        let resumed = self.claim(ranks)?.resume(&tell)?;
        if resumed.is_trained() {
            let Some(place) = resumed.place else { return Ok(None) };
            place.remove_leftovers()?;
            return self.trained_before().map(Some);
        }
        let store = resumed.store();
        resumed.begin(store, tell.clone())?.train(stop, &tell, observe)
    }

    /// Returns a warning for each option that is set but not read.
    fn unread(&self) -> Vec<String> {
        let of_the_command = said_in_vain(self.config(), OF_THE_COMMAND);
        let of_the_command = of_the_command.iter().map(|key| (key, "the command `chimera train`"));
        let of_models = self.subject.unread().iter().map(|key| (key, "the models of this program"));
        let unread = of_the_command.chain(of_models);
        unread.map(|(key, whose)| format!("`{key}` has no effect: it is for {whose}")).collect()
    }
}
