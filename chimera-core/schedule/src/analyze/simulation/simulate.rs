//! The simulator: the machine with tokens that carry the time at which they are ready.

mod gathers;

use std::convert::Infallible;
use std::task::Poll;

use rustc_hash::FxHashMap;

pub(in crate::analyze) use super::ready::Ready;
use super::shards::Shards;
use super::slowdown::Slowdown;
use super::timeline::{Event, Timeline, Work};
use crate::analyze::proof::check::interpret;
use crate::analyze::proof::refusal::Refusal;
use crate::costs::{Costs, of_cell};
use crate::effects::{Effects, Token};
use crate::interp::{Group, Machine};
use crate::ir::few::Few;
use crate::ir::ids::{BucketId, ChannelId, WorkerId};
use crate::ir::op::{Cell, Lane};
use crate::program::{Program, ShardOp};

/// Simulates a program in which each worker runs its row as early as it can.
pub fn simulate(program: &Program, costs: &impl Costs) -> Timeline {
    let mut slowdown = Slowdown::new(program, costs.reduction_share());
    loop {
        let timeline = simulate_with(program, costs, &mut slowdown);
        if slowdown.settle(program, &timeline) {
            return timeline;
        }
    }
}

fn simulate_with(program: &Program, costs: &impl Costs, slowdown: &mut Slowdown) -> Timeline {
    // A cell has about one send and one receive.
    let n_cells = program.rows.iter().map(Vec::len).sum::<usize>() / 3;
    let mut events = Vec::with_capacity(n_cells);
    let mut clock = Simulation::new(program, costs, |event| events.push(event));
    clock.slowdown = std::mem::take(slowdown);
    let mut group = Group::new(program);
    while group.run(&mut clock) != Ok(true) {
        // Only proven programs come here, and the proof is this very interpretation.
        assert!(clock.sum_next(), "a proven program stopped in simulation");
    }
    *slowdown = clock.slowdown;
    Timeline { n_workers: program.rows.len(), events }
}

/// Simulates the compute and messages of a program that has no synchronisation yet and is not
/// proven: `record` takes each event.
///
/// # Errors
/// If a worker lacks a value, or all wait.
pub(crate) fn simulate_compute(
    program: &Program,
    costs: &impl Costs,
    record: impl FnMut(Event),
) -> Result<(), Refusal> {
    // Channels have room for every message here.
    interpret(program, Simulation::new(program, costs, record), |_| ()).map(drop)
}

/// The time for which a move to the host or back stops compute.
pub(crate) fn occupies(
    program: &Program,
    costs: &impl Costs,
    (worker, cell): (WorkerId, &Cell),
) -> f64 {
    let rules = &program.rules;
    match cell {
        Cell::One(op)
            if cell.lane() == Lane::Moves
                && rules.is_transfer(op)
                && rules.keeper(op.pipe, op.stage, op.span.start).is_none() =>
        {
            costs.move_occupies(worker, op)
        }
        _ => 0.0,
    }
}

pub(in crate::analyze) struct Simulation<'p, C, F> {
    program: &'p Program,
    pub(in crate::analyze) costs: &'p C,
    /// Called for each event.
    record: F,
    n_events: u32,
    /// The time at which each worker is free.
    free: Vec<Ready>,
    /// The time until which each worker has last waited for a sum.
    awaited: Vec<Ready>,
    /// The time at which each worker's lane of moves is free.
    moves: Vec<Ready>,
    /// The time at which each worker's lane of reductions is free.
    lane: Vec<Ready>,
    queues: Vec<std::collections::VecDeque<Ready>>,
    /// The time at which each link between nodes is free.
    links: FxHashMap<usize, Ready>,
    sums: Vec<ReductionState>,
    /// Reductions that all members have started, but that no link has served yet.
    started: Vec<BucketId>,
    agreement: Agreement,
    shards: Shards<Ready>,
    slowdown: Slowdown,
}

#[derive(Clone)]
struct ReductionState {
    n_started: usize,
    ready: Ready,
    is_done: bool,
}

struct Agreement {
    arrived: Vec<bool>,
    ready: Ready,
}

impl<'p, C: Costs, F: FnMut(Event)> Simulation<'p, C, F> {
    pub(in crate::analyze) fn new(
        program: &'p Program,
        costs: &'p C,
        record: F,
    ) -> Simulation<'p, C, F> {
        let n_workers = program.rows.len();
        Simulation {
            program,
            costs,
            record,
            n_events: 0,
            free: vec![Ready::START; n_workers],
            awaited: vec![Ready::START; n_workers],
            moves: vec![Ready::START; n_workers],
            lane: vec![Ready::START; n_workers],
            queues: vec![Default::default(); program.channels.len()],
            links: FxHashMap::default(),
            sums: vec![
                ReductionState { n_started: 0, ready: Ready::START, is_done: false };
                program.buckets.len()
            ],
            started: Vec::new(),
            agreement: Agreement { arrived: vec![false; n_workers], ready: Ready::START },
            shards: Shards::of(program),
            slowdown: Slowdown::default(),
        }
    }

    fn free_on(&mut self, worker: WorkerId, lane: Lane) -> &mut Ready {
        match lane {
            Lane::Compute => &mut self.free[worker.index()],
            Lane::Moves => &mut self.moves[worker.index()],
        }
    }

    /// Records work that begins at `start`, and returns its end. Synchronisation without cost
    /// leaves no event.
    fn work(&mut self, worker: WorkerId, work: Work, start: Ready, takes: f64) -> Ready {
        if takes == 0.0 && matches!(work, Work::Reduce(_) | Work::Step(_)) {
            return start;
        }
        let end = start.at + takes;
        let index = self.n_events;
        self.n_events += 1;
        (self.record)(Event { worker, work, start: start.at, end, after: start.by });
        Ready { at: end, by: Some(index) }
    }

    /// Serves the sum that can begin first. Called when no row can move without one, so that none
    /// that is started later could have begun before it.
    fn sum_next(&mut self) -> bool {
        let begins = self.started.iter().map(|bucket| self.begin(*bucket).at).enumerate();
        let first = begins.min_by(|(_, a), (_, b)| a.total_cmp(b));
        let bucket = first.map(|(first, _)| self.started.remove(first));
        bucket.into_iter().for_each(|bucket| self.sum(bucket));
        bucket.is_some()
    }

    /// The time at which a sum that all members have started can begin.
    fn begin(&self, bucket: BucketId) -> Ready {
        let members = &self.program.buckets[bucket.index()].members;
        let lanes = members.iter().map(|m| self.lane[m.index()]);
        let links = self.costs.links(bucket).iter();
        let links = links.filter_map(|(link, _)| self.links.get(link).copied());
        lanes.chain(links).fold(self.sums[bucket.index()].ready, Ready::later)
    }

    fn sum(&mut self, bucket: BucketId) {
        let start = self.begin(bucket);
        let end = self.summed(bucket, start, self.costs.reduce(bucket));
        for (link, takes) in self.costs.links(bucket) {
            self.links.insert(*link, Ready { at: start.at + takes, ..end });
        }
        let sum = &mut self.sums[bucket.index()];
        (sum.ready, sum.is_done) = (end, true);
    }

    /// Records a sum on its members, and returns its end.
    pub(in crate::analyze) fn summed(
        &mut self,
        bucket: BucketId,
        start: Ready,
        takes: f64,
    ) -> Ready {
        let mut end = start;
        for member in &self.program.buckets[bucket.index()].members {
            end = self.work(*member, Work::Reduce(bucket), start, takes);
            self.lane[member.index()] = end;
        }
        end
    }

    /// Starts a sum on a worker, and returns the time of the start.
    pub(in crate::analyze) fn begin_sum(&mut self, worker: WorkerId, bucket: BucketId) -> Ready {
        let free = &mut self.free[worker.index()];
        free.at += self.costs.reduce_occupies(bucket);
        *free
    }

    /// Returns the time at which a message begins, and keeps the worker busy for its part of it.
    pub(in crate::analyze) fn send_start(
        &mut self,
        worker: WorkerId,
        token: &Token,
        value: Ready,
    ) -> Ready {
        let occupies = self.costs.occupies(token);
        // A sum that is part of the backward comes before its gradient goes upstream.
        let value = value.later(self.awaited[worker.index()]);
        let free = &mut self.free[worker.index()];
        // A message that occupies the worker begins when the earlier ones are done.
        let start = if occupies > 0.0 { value.later(*free) } else { value };
        let occupies = self.slowdown.takes(worker, start.at, occupies);
        *free = free.later(Ready { at: start.at + occupies, by: start.by });
        start
    }

    /// The time at which a worker is free.
    pub(in crate::analyze) fn free_at(&self, worker: WorkerId) -> Ready {
        self.free[worker.index()]
    }

    /// Keeps a worker from going on, and from sending, before a sum is there.
    pub(in crate::analyze) fn wait_for_sum(&mut self, worker: WorkerId, ready: Ready) {
        self.wait_for(worker, ready);
        self.awaited[worker.index()] = ready;
    }

    /// Keeps a worker from going on before a time.
    pub(in crate::analyze) fn wait_for(&mut self, worker: WorkerId, ready: Ready) {
        let free = &mut self.free[worker.index()];
        *free = free.later(ready);
    }
}

impl<C: Costs, F: FnMut(Event)> Machine for Simulation<'_, C, F> {
    type Value = Ready;
    type Error = Infallible;

    fn run(
        &mut self,
        worker: WorkerId,
        cell: &Cell,
        effects: &Effects,
        eaten: Few<Ready>,
    ) -> Result<Few<Ready>, Infallible> {
        let occupies = occupies(self.program, self.costs, (worker, cell));
        if occupies > 0.0 {
            let computes = self.free[worker.index()];
            let free = self.free_on(worker, cell.lane());
            *free = free.later(computes);
        }
        let free = self.free_on(worker, cell.lane());
        let start = eaten.iter().copied().fold(*free, Ready::later);
        let end = match cell {
            Cell::One(op) if cell.lane() == Lane::Moves => {
                if self.program.rules.is_transfer(op) {
                    self.work(worker, Work::Move(*op), start, self.costs.op(worker, op))
                } else {
                    start
                }
            }
            _ => {
                let takes = of_cell(self.costs, worker, cell);
                let takes = self.slowdown.takes(worker, start.at, takes);
                self.work(worker, Work::Cell(*cell), start, takes)
            }
        };
        if occupies > 0.0 {
            let goes_on = Ready { at: start.at + occupies, by: end.by };
            let free = &mut self.free[worker.index()];
            *free = free.later(goes_on);
        }
        *self.free_on(worker, cell.lane()) = end;
        Ok(Few::repeat(end, effects.makes.len()))
    }

    fn has_room(&mut self, _: ChannelId) -> bool {
        true
    }

    fn send(
        &mut self,
        worker: WorkerId,
        token: Token,
        channel: ChannelId,
        value: Ready,
    ) -> Result<(), Infallible> {
        if token.edge().is_none() {
            // The move itself takes the time.
            self.queues[channel.index()].push_back(value);
            return Ok(());
        }
        let start = self.send_start(worker, &token, value);
        let takes = self.slowdown.takes(worker, start.at, self.costs.message(&token));
        let arrives = Ready { at: start.at + takes, by: start.by };
        self.queues[channel.index()].push_back(arrives);
        Ok(())
    }

    fn recv(
        &mut self,
        worker: WorkerId,
        token: Token,
        channel: ChannelId,
    ) -> Result<Poll<Ready>, Infallible> {
        let queue = &mut self.queues[channel.index()];
        let Some(arrives) = queue.pop_front() else { return Ok(Poll::Pending) };
        if token.edge().is_some() {
            self.wait_for(worker, arrives);
        }
        Ok(Poll::Ready(arrives))
    }

    fn reduce(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Infallible> {
        let free = self.begin_sum(worker, bucket);
        self.slowdown.start(worker, bucket);
        let sum = &mut self.sums[bucket.index()];
        sum.n_started += 1;
        sum.ready = sum.ready.later(free);
        if sum.n_started == self.program.buckets[bucket.index()].members.len() {
            match self.costs.reduce(bucket) {
                0.0 => self.sum(bucket),
                _ => self.started.push(bucket),
            }
        }
        Ok(())
    }

    fn await_sum(&mut self, worker: WorkerId, bucket: BucketId) -> Result<Poll<()>, Infallible> {
        let sum = &self.sums[bucket.index()];
        if !sum.is_done {
            return Ok(Poll::Pending);
        }
        let ready = sum.ready;
        self.wait_for_sum(worker, ready);
        Ok(Poll::Ready(()))
    }

    fn agree(&mut self, worker: WorkerId) -> Result<Poll<()>, Infallible> {
        let Agreement { arrived, ready } = &mut self.agreement;
        arrived[worker.index()] = true;
        *ready = ready.later(self.free[worker.index()]);
        if arrived.contains(&false) {
            return Ok(Poll::Pending);
        }
        self.free[worker.index()] = Ready { at: ready.at + self.costs.agree(), ..*ready };
        Ok(Poll::Ready(()))
    }

    fn step(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Infallible> {
        let takes = self.costs.step(bucket);
        let end = self.work(worker, Work::Step(bucket), self.free[worker.index()], takes);
        // A gradient that waited for a sum goes upstream after the update.
        (self.free[worker.index()], self.awaited[worker.index()]) = (end, end);
        Ok(())
    }

    fn shard(&mut self, worker: WorkerId, op: &ShardOp) -> Result<Poll<()>, Infallible> {
        self.run_shard(worker, op)
    }

    fn give(&mut self, worker: WorkerId, lane: Lane) -> Ready {
        *self.free_on(worker, lane)
    }

    fn take(&mut self, worker: WorkerId, lane: Lane, room: Ready) {
        let free = self.free_on(worker, lane);
        *free = free.later(room);
    }
}

#[cfg(test)]
mod tests;
