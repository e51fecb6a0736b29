//! The proof about sharded weights: an op that reads weights finds them whole, and each gathering
//! receives one shard of each replica.
//!
//! All shards are of one version: they are sent, and gathered, before the update of the step.

use std::collections::{BTreeMap, BTreeSet};
use std::task::Poll;

use super::refusal::Reason;
use crate::ir::ids::{BucketId, StageId, WorkerId};
use crate::ir::op::Cell;
use crate::program::{Gathering, Program, ShardOp};

/// The state of all stages' weights, where replicas share them.
pub(super) struct ShardedWeights<'p> {
    program: &'p Program,
    /// By stage: the workers with shards of it.
    sharers: Vec<Vec<WorkerId>>,
    /// The stages with whole weights on a worker.
    whole: BTreeSet<(WorkerId, StageId)>,
    /// The stages with updated weights on a worker.
    updated: BTreeSet<(WorkerId, StageId)>,
    /// By worker: number of gatherings so far.
    n_gathered: Vec<u32>,
    /// By worker and number of each unfinished gathering: the stage, and the workers that have sent
    /// their shards.
    shared: BTreeMap<(WorkerId, u32), (StageId, Vec<WorkerId>)>,
}

impl<'p> ShardedWeights<'p> {
    /// The weights before a step of `program`; `None` if they are not sharded.
    pub(super) fn of(program: &'p Program) -> Option<ShardedWeights<'p>> {
        let stages = 0..program.placement.n_stages() as u16;
        program.shards_weights().then(|| ShardedWeights {
            program,
            sharers: stages.map(|stage| program.sharers(StageId(stage))).collect(),
            whole: BTreeSet::new(),
            updated: BTreeSet::new(),
            n_gathered: vec![0; program.rows.len()],
            shared: BTreeMap::new(),
        })
    }

    /// Refuses a cell that reads weights that are not whole.
    pub(super) fn read(&self, worker: WorkerId, cell: &Cell) -> Result<(), Reason> {
        let lacks = |stage| !self.whole.contains(&(worker, stage));
        match cell.ops().find(|op| self.program.reads_shards(op) && lacks(op.stage)) {
            Some(op) => refused(format!("{op} reads weights of which {worker} has a shard only")),
            None => Ok(()),
        }
    }

    /// Runs an instruction of a worker.
    pub(super) fn run(&mut self, worker: WorkerId, op: &ShardOp) -> Result<Poll<()>, Reason> {
        match *op {
            ShardOp::Share(gathering) => self.share(worker, gathering).map(Poll::Ready),
            ShardOp::Gather(gathering) => self.gather(worker, gathering),
            ShardOp::Drop(stage) if self.whole.remove(&(worker, stage)) => Ok(Poll::Ready(())),
            ShardOp::Drop(stage) => {
                refused(format!("{worker} releases weights of {stage}, which it has not gathered"))
            }
        }
    }

    /// An update changes the shards of its stages on a worker.
    pub(super) fn update(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Reason> {
        for &stage in &self.program.buckets[bucket.index()].stages {
            if self.whole.contains(&(worker, stage)) {
                let reason = format!(
                    "the update of {bucket} comes while {worker} has the whole weights of {stage}, of which it updates its \
                     shard only"
                );
                return refused(reason);
            }
            self.updated.insert((worker, stage));
        }
        Ok(())
    }

    /// Refuses what is left over at the end of a step.
    pub(super) fn finish(&self) -> Result<(), (WorkerId, Reason)> {
        let at = |worker, reason| Err((worker, Reason::Synchronisation(reason)));
        if let Some((worker, stage)) = self.whole.first() {
            let reason = format!("{worker} never releases the whole weights of {stage}");
            return at(*worker, reason);
        }
        if let Some(((worker, number), (stage, _))) = self.shared.first_key_value() {
            let reason = format!(
                "shards of {stage} are sent for gathering {number} of {worker}, which it never begins"
            );
            return at(*worker, reason);
        }
        Ok(())
    }

    fn share(&mut self, worker: WorkerId, gathering: Gathering) -> Result<(), Reason> {
        let Gathering { stage, to, number } = gathering;
        self.check(worker, gathering)?;
        let is_new = self.n_gathered[to.index()] <= number;
        let (of, senders) = self.shared.entry((to, number)).or_insert((stage, Vec::new()));
        if !is_new || *of != stage || senders.contains(&worker) {
            return refused(format!(
                "{worker} sends its shard of {stage} for gathering {number} of {to}, which is of \
                 another stage, has ended, or has this shard already"
            ));
        }
        senders.push(worker);
        Ok(())
    }

    fn gather(&mut self, worker: WorkerId, gathering: Gathering) -> Result<Poll<()>, Reason> {
        let Gathering { stage, to, number } = gathering;
        self.check(worker, gathering)?;
        if to != worker || self.n_gathered[worker.index()] != number {
            return refused(format!(
                "gathering {number} of {to} stands in the row of {worker} after {} others: each \
                 worker has its own, in order",
                self.n_gathered[worker.index()]
            ));
        }
        if self.whole.contains(&(worker, stage)) {
            return refused(format!("{worker} gathers the weights of {stage}, which are whole"));
        }
        match self.shared.get(&(worker, number)) {
            Some((of, _)) if *of != stage => {
                refused(format!("{worker} gathers {stage}, and is sent shards of {of}"))
            }
            Some((_, senders)) if senders.len() == self.sharers[stage.index()].len() => {
                self.shared.remove(&(worker, number));
                self.whole.insert((worker, stage));
                self.n_gathered[worker.index()] += 1;
                Ok(Poll::Ready(()))
            }
            _ => Ok(Poll::Pending),
        }
    }

    /// Refuses a shard or a gathering of a stage that is not sharded, for a worker without it, or
    /// after its update.
    fn check(&self, worker: WorkerId, gathering: Gathering) -> Result<(), Reason> {
        let Gathering { stage, to, .. } = gathering;
        let placement = &self.program.placement;
        let exists = stage.index() < placement.n_stages() && to.index() < self.n_gathered.len();
        if !exists || !self.program.rules.demand().trains(stage) {
            return refused(format!("{stage} has no shards for {to}"));
        }
        if !placement.stages_of(to).contains(&stage) {
            return refused(format!("shards of {stage} are for {to}, which does not hold it"));
        }
        if !self.sharers[stage.index()].contains(&worker) {
            return refused(format!("{worker} has no shard of {stage}"));
        }
        if self.updated.contains(&(worker, stage)) {
            return refused(format!(
                "weights of {stage} go between replicas after {worker} has updated its shard"
            ));
        }
        Ok(())
    }
}

fn refused<T>(reason: String) -> Result<T, Reason> {
    Err(Reason::Synchronisation(reason))
}

#[cfg(test)]
mod tests;
