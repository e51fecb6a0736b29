//! Shards of weights on their way, and costs without them.

use rustc_hash::FxHashMap;

use crate::costs::Costs;
use crate::ir::ids::{StageId, WorkerId};
use crate::ir::op::Op;
use crate::program::{Gathering, Program};

/// The shards that are on their way, each with a value.
#[derive(Clone, Debug, Default)]
pub(in crate::analyze) struct Shards<T> {
    /// Number of workers with shards, by stage.
    n_sharers: Vec<usize>,
    sent: FxHashMap<(WorkerId, u32), Vec<T>>,
}

impl<T> Shards<T> {
    /// No shard of a program is on its way.
    pub(in crate::analyze) fn of(program: &Program) -> Shards<T> {
        let n_stages = if program.shards_weights() { program.placement.n_stages() } else { 0 };
        let sharers = (0..n_stages as u16).map(|stage| program.sharers(StageId(stage)).len());
        Shards { n_sharers: sharers.collect(), sent: FxHashMap::default() }
    }

    /// Sends a shard.
    pub(in crate::analyze) fn send(&mut self, Gathering { to, number, .. }: Gathering, value: T) {
        self.sent.entry((to, number)).or_default().push(value);
    }

    /// Takes all shards of a gathering; `None` if some have not been sent.
    pub(in crate::analyze) fn take(&mut self, gathering: Gathering) -> Option<Vec<T>> {
        let Gathering { stage, to, number } = gathering;
        let n_sent = self.sent.get(&(to, number)).map_or(0, Vec::len);
        let all = n_sent == self.n_sharers.get(stage.index()).copied().unwrap_or(0);
        all.then(|| self.sent.remove(&(to, number)).unwrap_or_default())
    }
}

/// Costs at which shards of weights take no time: the difference to a step at the costs themselves
/// is the exposed time of gatherings.
pub struct FreeShards<'c, C>(pub &'c C);

impl<C: Costs> Costs for FreeShards<'_, C> {
    fn op(&self, worker: WorkerId, op: &Op) -> f64 {
        self.0.op(worker, op)
    }

    fn base(&self) -> Option<&dyn Costs> {
        Some(self.0)
    }

    fn share(&self, _: WorkerId, _: WorkerId, _: StageId) -> f64 {
        0.0
    }
}
