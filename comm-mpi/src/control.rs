//! This process as a member of its job: watching it, and leaving it.

use std::sync::Arc;
use std::time::Duration;

use chimera_core::comm::{CommError, Control, Process};
use chimera_core::ids::Rank;

use crate::Mpi;
use crate::detection::peers::Watched;
use crate::shared::Shared;

/// A handle of the transport, for any thread.
struct MpiControl {
    me: Rank,
    shared: Arc<Shared>,
    watched: Arc<Watched>,
}

impl Control for MpiControl {
    fn why_over(&self) -> Option<CommError> {
        let mailbox = self.shared.mailbox();
        if let Err(error) = mailbox.inbox.check() {
            return Some(error);
        }
        let known = mailbox.dead.first().copied();
        let found = || self.watched.ended().into_iter().find(|rank| !mailbox.gone.contains(rank));
        let from = known.or_else(found)?;
        Some(CommError::Lost { from, what: format!("all that {} needs", self.me) })
    }

    /// Messages that are not tensors may have 64 MiB.
    fn expect_tensors(&self, n_elements: usize) {
        self.shared.expect_tensors(n_elements);
    }

    fn open_sums(&self, groups: &[Vec<Rank>]) -> Result<(), CommError> {
        for members in groups.iter().map(|members| sorted(members)) {
            if members.len() > 1 && !self.shared.sums().contains(&members) {
                self.shared.open_sums(members)?;
            }
        }
        Ok(())
    }

    fn alone(&self) -> Vec<Rank> {
        self.watched.alone()
    }
}

impl Process for Mpi {
    fn control(&self) -> Arc<dyn Control> {
        let (shared, watched) = (Arc::clone(&self.shared), Arc::clone(&self.watched));
        Arc::new(MpiControl { me: self.me, shared, watched })
    }

    /// If a rank has died or does not leave, MPI is not finalised.
    fn close(&mut self, patience: Duration) -> Result<(), CommError> {
        if self.tending.take().is_none() {
            return Ok(());
        }
        let left = self.say_good_bye(patience);
        let ended_well = self.shared.end_tending();
        left?;
        match self.shared.take_wire().filter(|_| ended_well) {
            Some(wire) => wire.close().map_err(CommError::Failed),
            None => Err(CommError::Failed("the progress thread of MPI died".into())),
        }
    }

    fn end_job(&self, code: u8) {
        self.shared.abort_job(code);
    }
}

/// Sorts the ranks: core has its own order of replicas, and so do MPI's sums.
pub(crate) fn sorted(members: &[Rank]) -> Vec<Rank> {
    let mut sorted = members.to_vec();
    sorted.sort_unstable();
    sorted
}
