//! The timetable of an entry.

use anyhow::Result;

use super::Contender;
use crate::cli::parts::schedule::costs::CostArgs;
use crate::cli::parts::schedule::scheduled::Scheduled;

impl Contender {
    /// Makes the entry's timetable, with the given costs for a D-th of the model.
    pub(crate) fn scheduled(&self, costs: &CostArgs) -> Result<Scheduled> {
        Scheduled::of_model(&self.words.name, &self.words.shape, costs)
    }

    /// Like [`scheduled`](Contender::scheduled), but only cuts micro-batches if the options say so.
    pub(crate) fn of_whole_micro_batches(&self, costs: &CostArgs) -> Result<Scheduled> {
        Scheduled::of_whole_micro_batches(&self.words.name, &self.words.shape, costs)
    }
}
