//! The machine that the proof runs a program on.

use std::collections::VecDeque;
use std::task::Poll;

use rustc_hash::FxHashMap;

use crate::activation_memory::{ActivationMemory, is_within};
use crate::analyze::proof::refusal::{Reason, Refusal, Savings, refusal};
use crate::analyze::proof::shards::ShardedWeights;
use crate::analyze::proof::versions::Versions;
use crate::effects::{Effects, Token};
use crate::interp::Machine;
use crate::ir::few::Few;
use crate::ir::ids::{BucketId, ChannelId, StageId, WorkerId};
use crate::ir::op::{Cell, Kind, Lane, Op};
use crate::program::{Bucket, Instr, Program, ShardOp};

/// The checker: tokens carry no value, except weight versions, which carry their number.
pub(super) struct Checker<'p> {
    program: &'p Program,
    max_peak: Option<f64>,
    /// Room of every channel.
    pub(super) bound: u32,
    queues: Vec<VecDeque<Token>>,
    /// By bucket: number of members that started its reduction.
    n_started: Vec<usize>,
    /// The buckets with a stage's gradients for an update.
    buckets_of: FxHashMap<(StageId, u32), Vec<BucketId>>,
    pub(super) workers: Vec<SyncState>,
    n_agreed: usize,
    pub(super) activations: ActivationMemory,
    /// The versions of an asynchronous program, if it has updates.
    pub(super) versions: Option<Versions>,
    /// The weights that replicas share, if they do.
    pub(super) sharded: Option<ShardedWeights<'p>>,
}

/// The progress of a worker in its gradient reductions and updates.
#[derive(Clone, Default)]
pub(super) struct SyncState {
    pub(super) phases: FxHashMap<BucketId, Phase>,
    /// Number of buckets of the worker with a started sum that it has not waited for.
    n_unsummed: usize,
    last_started: Option<BucketId>,
    pub(super) has_agreed: bool,
}

/// The progress of a bucket on one worker.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Started,
    Summed,
    Stepped,
}

impl<'p> Checker<'p> {
    pub(super) fn new(
        program: &'p Program,
        max_peak: Option<f64>,
        versions: Option<Versions>,
    ) -> Checker<'p> {
        let mut workers = vec![SyncState::default(); program.rows.len()];
        let summed = program.buckets.iter().filter(|bucket| program.is_trained(bucket));
        for member in summed.flat_map(|bucket| &bucket.members) {
            workers[member.index()].n_unsummed += 1;
        }
        Checker {
            program,
            max_peak,
            bound: 1,
            queues: vec![VecDeque::new(); program.channels.len()],
            n_started: vec![0; program.buckets.len()],
            buckets_of: Bucket::by_stage(&program.buckets),
            workers,
            n_agreed: 0,
            activations: ActivationMemory::new(&program.placement, program.units_per_micro),
            versions,
            sharded: ShardedWeights::of(program),
        }
    }

    /// Refuses a piece of work that does not exist, or whose stage the worker does not hold.
    fn check_piece(&self, worker: WorkerId, op: Op) -> Result<(), Reason> {
        let Kind::Work(work) = op.kind else { return Ok(()) };
        let Program { placement, rules, .. } = self.program;
        let workers = placement.pipes().get(op.pipe.index());
        let Some(owner) = workers.and_then(|workers| workers.get(op.stage.index())).copied() else {
            return Err(Reason::UnknownPiece(op));
        };
        if work.index() >= rules.works().len() {
            return Err(Reason::UnknownPiece(op));
        }
        if owner == worker { Ok(()) } else { Err(Reason::Misplaced { op, owner }) }
    }

    /// Refuses a gradient that would miss its own update, or get into the one before.
    fn add_gradient(&self, worker: WorkerId, op: &Op) -> Result<(), Reason> {
        let phases = &self.workers[worker.index()].phases;
        let update = self.program.window.update_of(op.span);
        let buckets = |update| self.buckets_of.get(&(op.stage, update)).into_iter().flatten();
        if let Some(bucket) = buckets(update).find(|b| phases.contains_key(b)) {
            let reason = format!("{op} comes after the reduction of {bucket}");
            return Err(Reason::Synchronisation(reason));
        }
        if self.versions.is_some()
            && let Some(before) = update.checked_sub(1)
            && let Some(bucket) = buckets(before).find(|b| phases.get(b) != Some(&Phase::Stepped))
        {
            let reason = format!("{op} comes before the update of {bucket}");
            return Err(Reason::Synchronisation(reason));
        }
        Ok(())
    }

    /// Counts memory in the written order of each row, where ops of both lanes stand. Memory is
    /// handed out in this order, so no other order holds more.
    pub(super) fn hold_in_order(&mut self) -> Result<(), Refusal> {
        let program = self.program;
        for (worker, row) in (0..).map(WorkerId).zip(&program.rows) {
            for (at, instr) in row.iter().enumerate() {
                let Instr::Run(cell) = instr else { continue };
                self.hold(worker, cell, &program.rules.cell_effects(cell))
                    .map_err(|reason| refusal(program, Some((worker, at)), reason))?;
            }
        }
        Ok(())
    }

    /// Counts the memory of a worker while it runs a cell, up to the limit.
    fn hold(&mut self, worker: WorkerId, cell: &Cell, effects: &Effects) -> Result<(), Reason> {
        let peak = self.activations.run(worker, cell, effects, &self.program.rules);
        match self.max_peak {
            Some(limit) if !is_within(peak, self.max_peak) => Err(Reason::Memory {
                peak,
                limit,
                deferred: self.unmoved(worker, cell),
                savings: Savings::of(self.program),
            }),
            _ => Ok(()),
        }
    }

    /// Micro-batches that a worker holds before a cell for deferred weight work, in a program that
    /// moves other activations.
    fn unmoved(&self, worker: WorkerId, cell: &Cell) -> f64 {
        let rules = &self.program.rules;
        if !rules.has_moves() {
            return 0.0;
        }
        let row = self.program.rows[worker.index()].iter().filter_map(|instr| match instr {
            Instr::Run(cell) => Some(cell),
            _ => None,
        });
        let before = row.take_while(|other| *other != cell);
        before.map(|cell| self.activations.deferred_change(worker, cell, rules)).sum()
    }

    /// Moves a bucket of a worker from one phase to the next.
    fn enter(&mut self, worker: WorkerId, bucket: BucketId, phase: Phase) -> Result<(), Reason> {
        let (before, what) = match phase {
            Phase::Started => (None, "reduction"),
            Phase::Summed => (Some(Phase::Started), "wait for the gradient reduction"),
            Phase::Stepped => (Some(Phase::Summed), "update"),
        };
        let state = &mut self.workers[worker.index()];
        if state.phases.insert(bucket, phase) != before {
            return Err(Reason::Synchronisation(format!(
                "the {what} of {bucket} comes twice or too early: reduction, sum and update come once \
                 each, in this order"
            )));
        }
        if phase == Phase::Summed {
            state.n_unsummed -= 1;
        }
        Ok(())
    }
}

impl Machine for Checker<'_> {
    type Value = u32;
    type Error = Reason;

    fn run(
        &mut self,
        worker: WorkerId,
        cell: &Cell,
        effects: &Effects,
        eaten: Few<u32>,
    ) -> Result<Few<u32>, Reason> {
        if !self.program.rules.works().is_empty() {
            cell.ops().try_for_each(|op| self.check_piece(worker, op))?;
        }
        let has_reduced = !self.workers[worker.index()].phases.is_empty();
        for op in cell.ops().filter(|op| self.program.rules.adds_to_sum(op)) {
            if has_reduced || self.versions.is_some() {
                self.add_gradient(worker, &op)?;
            }
        }
        if let Some(sharded) = &self.sharded {
            sharded.read(worker, cell)?;
        }
        let made = match &mut self.versions {
            Some(versions) => versions.run(worker, cell, eaten, &self.program.rules)?,
            None => Few::repeat(0, effects.makes.len()),
        };
        if !self.program.rules.has_moves() {
            self.hold(worker, cell, effects)?;
        }
        Ok(made)
    }

    fn has_room(&mut self, channel: ChannelId) -> bool {
        self.queues[channel.index()].len() < self.bound as usize
    }

    fn send(
        &mut self,
        _: WorkerId,
        token: Token,
        channel: ChannelId,
        _: u32,
    ) -> Result<(), Reason> {
        self.queues[channel.index()].push_back(token);
        Ok(())
    }

    fn recv(
        &mut self,
        _: WorkerId,
        expected: Token,
        channel: ChannelId,
    ) -> Result<Poll<u32>, Reason> {
        match self.queues[channel.index()].front().copied() {
            None => Ok(Poll::Pending),
            Some(next) if next != expected => Err(Reason::ChannelOrder { expected, next }),
            Some(_) => {
                self.queues[channel.index()].pop_front();
                Ok(Poll::Ready(0))
            }
        }
    }

    fn reduce(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Reason> {
        if !self.program.buckets[bucket.index()].members.contains(&worker) {
            let reason =
                format!("{worker} starts the reduction of {bucket} without being a member");
            return Err(Reason::Synchronisation(reason));
        }
        let order = |b: BucketId| self.program.buckets[b.index()].order;
        let last = self.workers[worker.index()].last_started.replace(bucket);
        if let Some(last) = last.filter(|last| order(*last) >= order(bucket)) {
            return Err(Reason::Synchronisation(format!(
                "the reduction of {bucket} starts after that of {last}, against the common order"
            )));
        }
        self.n_started[bucket.index()] += 1;
        self.enter(worker, bucket, Phase::Started)
    }

    fn await_sum(&mut self, worker: WorkerId, bucket: BucketId) -> Result<Poll<()>, Reason> {
        if self.n_started[bucket.index()] < self.program.buckets[bucket.index()].members.len() {
            return Ok(Poll::Pending);
        }
        self.enter(worker, bucket, Phase::Summed).map(Poll::Ready)
    }

    fn agree(&mut self, worker: WorkerId) -> Result<Poll<()>, Reason> {
        let progress = &mut self.workers[worker.index()];
        if self.program.has_barrier && progress.n_unsummed > 0 {
            let reason =
                "the agreement comes before a gradient reduction that it needs".to_string();
            return Err(Reason::Synchronisation(reason));
        }
        if !std::mem::replace(&mut progress.has_agreed, true) {
            self.n_agreed += 1;
        }
        Ok(if self.n_agreed == self.workers.len() { Poll::Ready(()) } else { Poll::Pending })
    }

    fn step(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Reason> {
        if self.program.has_barrier && !self.workers[worker.index()].has_agreed {
            let reason = format!("the update of {bucket} comes before the agreement");
            return Err(Reason::Synchronisation(reason));
        }
        if let Some(versions) = &mut self.versions {
            let bucket = &self.program.buckets[bucket.index()];
            bucket.stages.iter().try_for_each(|s| versions.update(worker, *s, bucket.update))?;
        }
        if let Some(sharded) = &mut self.sharded {
            sharded.update(worker, bucket)?;
        }
        self.enter(worker, bucket, Phase::Stepped)
    }

    fn shard(&mut self, worker: WorkerId, op: &ShardOp) -> Result<Poll<()>, Reason> {
        self.sharded.as_mut().map_or(Ok(Poll::Ready(())), |sharded| sharded.run(worker, op))
    }

    fn give(&mut self, _: WorkerId, _: Lane) -> u32 {
        0
    }

    fn take(&mut self, _: WorkerId, _: Lane, _: u32) {}
}
