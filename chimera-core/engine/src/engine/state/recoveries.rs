//! What ranks say of themselves where they meet after a death, and what the deaths so far have cost.

use chimera_schedule::ids::{Rank, StageId};
use serde::{Deserialize, Serialize};

use crate::engine::fields::Fields;
use crate::engine::state::shadows::{CopiedStages, Ring, Slot};

/// Recoveries from deaths of ranks, as all ranks know them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Recoveries {
    /// How many there were so far.
    pub n: u64,
    /// Seconds that they took so far: each from the last step sync before it until training went on.
    pub lost_s: f64,
    /// Ranks that were replaced since the step before.
    pub replaced: Vec<Rank>,
}

/// Where one rank stands when the ranks meet.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Standing {
    /// Settings on which results depend, if the caller compares them.
    pub(crate) fields: Fields,
    /// The step that it is to train next; none where it has no state.
    pub(crate) next: Option<u64>,
    /// Whether it has the gradients of that step summed over all ranks, and so can make its updates by the sync of another.
    pub(crate) has_sums: bool,
    /// Whether it is within the update of a sharded optimizer, and so has tensors of before it and of behind it.
    pub(crate) is_within_update: bool,
    /// Stages that it has the weights of, as they are before that step.
    pub(crate) has: Vec<StageId>,
    /// Seconds since its last step sync, if it was in training before.
    pub(crate) away_s: Option<f64>,
    /// Recoveries that it knows of, and their seconds.
    pub(crate) n: u64,
    pub(crate) lost_s: f64,
    /// All tensors of its stages.
    pub(crate) slots: Vec<Slot>,
    /// What it has copies of, by step.
    pub(crate) shadows: Vec<CopiedStages>,
    /// Among whom they are, if it has any.
    pub(crate) ring: Option<Ring>,
}

impl Standing {
    /// Whether what it holds is of this step, or is so once it has made the updates of the step before.
    pub(crate) fn can_reach(&self, step: u64) -> bool {
        self.next.is_some_and(|next| next == step || self.has_sums && next + 1 == step)
    }

    /// Whether all that it holds is of this step.
    pub(crate) fn is_at(&self, step: u64) -> bool {
        self.next == Some(step) && !self.is_within_update
    }

    /// Makes it one that takes a dead rank's place: what it holds is of no use to others.
    pub(crate) fn forget(&mut self) {
        (self.next, self.has_sums) = (None, false);
        self.has.clear();
    }
}

impl Recoveries {
    /// Counts what has led to a meeting of all ranks, if it was a death: at the first meeting none was in training before.
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
