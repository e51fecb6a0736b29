//! The standings of ranks that meet after a death, and the cost of the deaths so far.

use chimera_schedule::ids::{Rank, StageId};
use serde::{Deserialize, Serialize};

use crate::engine::fields::Fields;
use crate::engine::state::shadows::{CopiedStages, Ring, Slot};

/// Recoveries from deaths of ranks, equal on all ranks.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Recoveries {
    /// Number of recoveries so far.
    pub n: u64,
    /// Seconds lost so far, each time from the last step sync until training went on.
    pub lost_s: f64,
    /// Ranks that were replaced since the previous step.
    pub replaced: Vec<Rank>,
}

/// The progress of one rank when the ranks meet.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Standing {
    /// Settings on which results depend, if the caller compares them.
    pub(crate) fields: Fields,
    /// The step that the rank trains next; `None` without state.
    pub(crate) next: Option<u64>,
    /// Whether it has the gradients of that step summed over all ranks, and can make the updates
    /// with another rank's sync.
    pub(crate) has_sums: bool,
    /// Whether it is within a sharded update, with tensors from before and after it.
    pub(crate) is_within_update: bool,
    /// Stages that it has weights of, as before that step.
    pub(crate) has: Vec<StageId>,
    /// Seconds since its last step sync, if it was in training before.
    pub(crate) away_s: Option<f64>,
    /// Number of recoveries that it knows of, and their seconds.
    pub(crate) n: u64,
    pub(crate) lost_s: f64,
    pub(crate) slots: Vec<Slot>,
    /// Stages that it has copies of, by step.
    pub(crate) shadows: Vec<CopiedStages>,
    /// The ring of ranks that keep these copies, if there are any.
    pub(crate) ring: Option<Ring>,
}

impl Standing {
    /// Returns true if its state is that of this step, at least after a pending update.
    pub(crate) fn can_reach(&self, step: u64) -> bool {
        self.next.is_some_and(|next| next == step || self.has_sums && next + 1 == step)
    }

    /// Returns true if all of its state is that of this step.
    pub(crate) fn is_at(&self, step: u64) -> bool {
        self.next == Some(step) && !self.is_within_update
    }

    /// Turns it into the standing of a replacement, whose state is of no use to others.
    pub(crate) fn forget(&mut self) {
        (self.next, self.has_sums) = (None, false);
        self.has.clear();
    }
}

impl Recoveries {
    /// Counts a meeting of all ranks as a recovery, if a death led to it. At the first meeting no
    /// rank was in training before.
    pub(crate) fn count(&mut self, standings: &[Standing], replaced: &[Rank]) {
        self.n = standings.iter().map(|standing| standing.n).max().unwrap_or(0);
        let longest = |of: &dyn Fn(&Standing) -> f64| standings.iter().map(of).fold(0.0, f64::max);
        self.lost_s = longest(&|standing| standing.lost_s);
        if standings.iter().any(|standing| standing.away_s.is_some()) {
            self.n += 1;
            self.lost_s += longest(&|standing| standing.away_s.unwrap_or(0.0));
            self.replaced.extend(replaced);
            self.replaced.sort_unstable();
            self.replaced.dedup();
        }
    }
}
