//! Copies of the state of a rank and of its neighbour, for recovery from deaths.

use std::collections::BTreeMap;

use chimera_schedule::ids::{Rank, StageId};
use serde::{Deserialize, Serialize};

/// A tensor of a stage: the weights (0) or the optimizer state of a parameter.
pub(crate) type Slot = (StageId, usize, usize);

/// The copies that a rank keeps.
pub(crate) struct Shadows<T> {
    /// The copies, newest last.
    pub(crate) kept: Vec<Shadow<T>>,
    /// The tensors that the previous rank holds; empty until that rank has listed them.
    pub(crate) other: Vec<Slot>,
    /// The step of the copy that is on its way from the previous rank.
    pub(crate) awaited: Option<u64>,
    /// Number of ranks that keep copies of each other.
    pub(crate) n_ranks: usize,
    /// This rank's number among them.
    pub(crate) me: Rank,
}

/// A rank's place among the ranks that keep copies of each other.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) struct Ring {
    pub(crate) n_ranks: usize,
    /// The rank's number among them.
    pub(crate) me: usize,
}

/// The stages that a rank has copies of, for one step.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) struct CopiedStages {
    pub(crate) step: u64,
    /// Stages that the rank itself held.
    pub(crate) own: Vec<StageId>,
    /// Stages that the previous rank held; empty until they have arrived.
    pub(crate) other: Vec<StageId>,
}

fn stages_of<'s>(slots: impl IntoIterator<Item = &'s Slot>) -> Vec<StageId> {
    let mut stages: Vec<StageId> = slots.into_iter().map(|(stage, ..)| *stage).collect();
    stages.dedup();
    stages
}

/// Copies of the state before a step.
pub(crate) struct Shadow<T> {
    pub(crate) step: u64,
    pub(crate) committed: Committed,
    pub(crate) own: BTreeMap<Slot, T>,
    /// The copies of the previous rank; empty until they have arrived.
    pub(crate) other: BTreeMap<Slot, T>,
}

impl<T> Default for Shadows<T> {
    fn default() -> Self {
        Shadows { kept: Vec::new(), other: Vec::new(), awaited: None, n_ranks: 0, me: Rank(0) }
    }
}

impl<T> Shadows<T> {
    /// The stages that this rank has copies of, by step; its neighbour may hold others by now.
    pub(crate) fn stages(&self) -> Vec<CopiedStages> {
        let of = |shadow: &Shadow<T>| CopiedStages {
            step: shadow.step,
            own: stages_of(shadow.own.keys()),
            other: stages_of(shadow.other.keys()),
        };
        self.kept.iter().map(of).collect()
    }

    /// The ring of ranks that keep the copies, if there are any.
    pub(crate) fn ring(&self) -> Option<Ring> {
        let is_any = !self.kept.is_empty();
        is_any.then_some(Ring { n_ranks: self.n_ranks, me: self.me.index() })
    }

    /// Forgets the copy on its way, since the transport has ended.
    pub(crate) fn leave(&mut self) {
        self.awaited = None;
    }

    pub(crate) fn of(&self, step: u64) -> Option<&Shadow<T>> {
        self.kept.iter().find(|shadow| shadow.step == step)
    }
}

/// The last committed step, as reported by a rank that has its sync.
#[derive(Serialize, Deserialize, Clone)]
pub(crate) struct Committed {
    pub(crate) n_updates: u64,
    pub(crate) n_skipped: u64,
    pub(crate) n_skipped_in_a_row: u64,
    pub(crate) skipped: Option<String>,
    /// The record of every rank in the sync, by rank; empty before the first sync.
    pub(crate) records: Vec<Vec<u8>>,
}
