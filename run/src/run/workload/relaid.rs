//! The measured speeds of ranks, and the layout for them.

use anyhow::{Result, ensure};
use chimera_plan::plan::{Relaid, relaid, work};
use chimera_settings::Speeds;

use crate::run::{DirectTransport, Run, Transformer};

impl<K: DirectTransport> Run<Transformer<K>> {
    /// Returns the work that each rank does per second, from the seconds for which each was busy in
    /// a step. The unit is the same for all ranks and all steps of a run.
    ///
    /// # Errors
    /// If there are not as many seconds as ranks.
    pub fn rates(&self, busy_s: &[f64]) -> Result<Vec<f64>> {
        let n_ranks = self.config().schedule.width * self.config().schedule.depth;
        ensure!(busy_s.len() == n_ranks, "{} of {n_ranks} ranks are known", busy_s.len());
        let work = work(self.config(), &self.subject.priced, self.program())?;
        let rates = busy_s.iter().zip(work.iter().cycle());
        Ok(rates.map(|(busy_s, work)| work / busy_s.max(f64::MIN_POSITIVE)).collect())
    }

    /// Returns the layout that `auto` has for ranks of these rates.
    ///
    /// # Errors
    /// If no layout can be found. This cannot happen, since the run has one.
    pub fn relaid(&self, rates: &[f64]) -> Result<Relaid> {
        let (priced, found) = (&self.subject.priced, self.course.found.as_ref());
        relaid(self.config(), priced, self.program(), (Speeds::measured(rates), found))
    }
}
