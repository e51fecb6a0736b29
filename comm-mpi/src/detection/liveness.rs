//! A monitor of whether the job goes on.

use std::sync::Arc;

use chimera_core::comm::CommError;
use chimera_core::ids::Rank;

use crate::detection::peers::Watched;
use crate::shared::Shared;

/// A handle by which any thread, such as a signal handler, sees whether the job goes on.
#[derive(Clone)]
pub struct LivenessMonitor {
    pub(crate) me: Rank,
    pub(crate) shared: Arc<Shared>,
    pub(crate) watched: Arc<Watched>,
}

impl LivenessMonitor {
    /// Returns the first known cause if the job is over: a rank has reported it or was found dead.
    pub fn why_over(&self) -> Option<CommError> {
        let mailbox = self.shared.mailbox();
        if let Some(error) = &mailbox.ended {
            return Some(error.clone());
        }
        let known = mailbox.dead.first().copied();
        let found = || self.watched.ended().into_iter().find(|rank| !mailbox.gone.contains(rank));
        let from = known.or_else(found)?;
        Some(CommError::Lost { from, what: format!("all that {} needs", self.me) })
    }
}
