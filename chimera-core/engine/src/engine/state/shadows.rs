//! The copies that ranks have of what they and their neighbours hold.

use std::collections::BTreeMap;

use chimera_schedule::ids::{Rank, StageId};
use serde::{Deserialize, Serialize};

/// A tensor of a stage: its weights (0), or what the optimizer keeps of it.
pub(crate) type Slot = (StageId, usize, usize);

/// The copies that a rank has.
pub(crate) struct Shadows<T> {
    /// The newest last.
    pub(crate) kept: Vec<Shadow<T>>,
    /// What the rank before this one holds; nothing before it has said so.
    pub(crate) other: Vec<Slot>,
    /// The step of the copy that is on its way from there.
    pub(crate) awaited: Option<u64>,
    /// Ranks whose copies these are.
    pub(crate) n_ranks: usize,
    /// The number of this one among them.
    pub(crate) me: Rank,
}

/// A rank's place among the ranks that have copies of each other.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) struct Ring {
    pub(crate) n_ranks: usize,
    /// Its number among them.
    pub(crate) me: usize,
}

/// The stages of which a rank has copies of a step.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) struct CopiedStages {
    pub(crate) step: u64,
    /// Of what it held itself.
    pub(crate) own: Vec<StageId>,
    /// Of what the rank before it held; none until they have come.
    pub(crate) other: Vec<StageId>,
}

fn stages_of<'s>(slots: impl IntoIterator<Item = &'s Slot>) -> Vec<StageId> {
    let mut stages: Vec<StageId> = slots.into_iter().map(|(stage, ..)| *stage).collect();
    stages.dedup();
    stages
}

/// What was held when a step was to be trained next.
pub(crate) struct Shadow<T> {
    pub(crate) step: u64,
    pub(crate) committed: Committed,
    pub(crate) own: BTreeMap<Slot, T>,
    /// Of the rank before this one; empty until it has come.
    pub(crate) other: BTreeMap<Slot, T>,
}

impl<T> Default for Shadows<T> {
    fn default() -> Self {
        Shadows { kept: Vec::new(), other: Vec::new(), awaited: None, n_ranks: 0, me: Rank(0) }
    }
}

impl<T> Shadows<T> {
    /// What this rank has, by step. What the rank before it holds now need not be what it held then.
    pub(crate) fn stages(&self) -> Vec<CopiedStages> {
        let of = |shadow: &Shadow<T>| CopiedStages {
            step: shadow.step,
            own: stages_of(shadow.own.keys()),
            other: stages_of(shadow.other.keys()),
        };
        self.kept.iter().map(of).collect()
    }

    /// Among whom they are, if there are any.
    pub(crate) fn ring(&self) -> Option<Ring> {
        let is_any = !self.kept.is_empty();
        is_any.then_some(Ring { n_ranks: self.n_ranks, me: self.me.index() })
    }

    /// Forgets what is on its way, since the transport has ended.
    pub(crate) fn leave(&mut self) {
        self.awaited = None;
    }

    pub(crate) fn of(&self, step: u64) -> Option<&Shadow<T>> {
        self.kept.iter().find(|shadow| shadow.step == step)
    }
}

/// What a rank that has the sync of the last committed step tells the others.
#[derive(Serialize, Deserialize, Clone)]
pub(crate) struct Committed {
    pub(crate) n_updates: u64,
    pub(crate) n_skipped: u64,
    pub(crate) n_skipped_in_a_row: u64,
    pub(crate) skipped: Option<String>,
    /// What every rank said in the sync, by rank; none before the first.
    pub(crate) records: Vec<Vec<u8>>,
}
