//! A simulated step, and its costs for analyses.

use rustc_hash::FxHashMap;

use super::load::LinkLoad;
use crate::analyze::simulation::timeline::Timeline;
use crate::costs::Costs;
use crate::effects::Token;
use crate::ir::ids::{BucketId, WorkerId};
use crate::ir::op::Op;

/// A step on a topology.
#[derive(Clone, Debug)]
pub struct Contended {
    /// The step of the group that ends last.
    pub timeline: Timeline,
    /// The number of that group.
    pub group: usize,
    /// The load of each link that was used, by all groups.
    pub loads: Vec<LinkLoad>,
    pub(super) times: Times,
}

/// The times of one group's messages and reductions, and of the step sync.
#[derive(Clone, Debug)]
pub(super) struct Times {
    pub(super) messages: FxHashMap<Token, f64>,
    pub(super) sums: Vec<f64>,
    pub(super) agree: f64,
}

/// Costs of a step on a topology: each message and reduction takes as long as in the simulation.
pub struct LinkedCosts<'c, C> {
    base: &'c C,
    times: Times,
}

impl Contended {
    /// Returns `base` with the times of this step's messages and reductions, for analyses of its
    /// timeline.
    pub fn costs<'c, C: Costs>(&self, base: &'c C) -> LinkedCosts<'c, C> {
        LinkedCosts { base, times: self.times.clone() }
    }
}

impl<C: Costs> Costs for LinkedCosts<'_, C> {
    fn base(&self) -> Option<&dyn Costs> {
        Some(self.base)
    }

    fn op(&self, worker: WorkerId, op: &Op) -> f64 {
        self.base.op(worker, op)
    }

    fn message(&self, token: &Token) -> f64 {
        self.times.messages.get(token).copied().unwrap_or_else(|| self.base.message(token))
    }

    fn reduce(&self, bucket: BucketId) -> f64 {
        self.times.sums.get(bucket.index()).copied().unwrap_or(0.0)
    }

    fn links(&self, _: BucketId) -> &[(usize, f64)] {
        &[]
    }

    fn agree(&self) -> f64 {
        self.times.agree
    }
}
