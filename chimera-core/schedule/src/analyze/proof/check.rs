//! The proof that a program is safe to run, and the refusal that says why one is not.
//!
//! Proven are: every micro-batch goes forward and backward through every stage exactly once, on the
//! worker that holds the stage; every op finds the tokens it eats; the messages of each channel are
//! received in the order they are sent; no worker waits for ever, with channels of bounded capacity;
//! all workers start reductions in one order, each after the worker's last gradient and exactly once
//! before its step; nothing is left over; saved activations stay under a limit, if one is given.
//!
//! Of an asynchronous window the same holds for every update. Proven are moreover: the gradients of one
//! update are never mixed with another's; every backward reads the version of the weights that its
//! forward read; in a double buffer, each forward finds the version that the rule names.

use std::collections::VecDeque;
use std::task::Poll;

use rustc_hash::FxHashMap;

use super::deadlock::deadlock;
use super::refusal::{Reason, Refusal, Savings, refusal};
use super::versions::Versions;
use crate::activation_memory::{ActivationMemory, is_within};
use crate::effects::{Effects, Token};
use crate::interp::{Group, Machine, Stop};
use crate::ir::few::Few;
use crate::ir::ids::{BucketId, ChannelId, StageId, WorkerId};
use crate::ir::op::{Cell, Kind, Lane, Op};
use crate::ir::update::Update;
use crate::program::{Bucket, Instr, Program};

/// What the proof finds out by the way.
pub(crate) struct Proof {
    pub(crate) channel_bound: u32,
    pub(crate) peaks: Vec<f64>,
    pub(crate) weight_versions: Vec<u32>,
}

/// Proves a whole program.
pub(crate) fn prove(program: &Program, max_peak: Option<f64>) -> Result<Proof, Refusal> {
    let is_asynchronous = program.window.update() != Update::Flush;
    let versions = is_asynchronous.then(|| Versions::new(program.window, program.rows.len()));
    let machine = Checker::new(program, max_peak, versions);
    let mut machine = interpret(program, machine, |machine| machine.bound += 1)?;
    if program.rules.has_moves() {
        machine.hold_in_order()?;
    }
    for (bucket, members) in (0..).map(BucketId).zip(program.buckets.iter().map(|b| &b.members)) {
        for &worker in members {
            let progress = &machine.workers[worker.index()];
            if progress.phases.get(&bucket) != Some(&Phase::Stepped) || !progress.has_agreed {
                let reason = format!("{bucket} is not updated, or without an agreement");
                let end = program.rows[worker.index()].len();
                let reason = Reason::Synchronisation(reason);
                return Err(refusal(program, Some((worker, end)), reason));
            }
        }
    }
    let one = || vec![1; program.rows.len()];
    let mut weight_versions = machine.versions.map_or_else(one, Versions::peaks);
    for (worker, versions) in (0..).map(WorkerId).zip(&mut weight_versions) {
        if program.placement.stages_of(worker).is_empty() {
            *versions = 0;
        }
    }
    Ok(Proof { channel_bound: machine.bound, peaks: machine.activations.peaks(), weight_versions })
}

/// Runs all rows to their ends, with the least room in channels that suffices: `widen` gives each room for one message
/// more.
pub(in crate::analyze) fn interpret<M: Machine>(
    program: &Program,
    mut machine: M,
    widen: impl Fn(&mut M),
) -> Result<M, Refusal>
where
    Reason: From<M::Error>,
{
    let mut group = Group::new(program);
    loop {
        let done = group.run(&mut machine).map_err(|(worker, stop)| {
            let position = group.rows()[worker.index()].tried();
            refusal(program, Some((worker, position)), reason(stop))
        })?;
        if done {
            break;
        }
        // A worker that waits for room in a channel may go on with more of it. What has run so far
        // would have run with more room too, so there is no need to begin again.
        let positions: Vec<[usize; 2]> =
            group.rows().iter().map(|row| Lane::ALL.map(|lane| row.position_on(lane))).collect();
        let mut next = positions.iter().zip(&program.rows).flat_map(|(positions, instrs)| {
            Lane::ALL
                .into_iter()
                .zip(positions)
                .filter_map(|(lane, at)| instrs.get(*at).filter(|instr| instr.lane() == lane))
        });
        if !next.any(|instr| matches!(instr, Instr::Send(..))) {
            return Err(deadlock(program, &positions));
        }
        widen(&mut machine);
    }
    let left = group.rows().iter().enumerate();
    let left = left.filter_map(|(w, row)| Some((w, *row.ledger().tokens().first()?))).next();
    if let Some((w, token)) = left {
        let at = (WorkerId(w as u16), maker(program, w, &token));
        return Err(refusal(program, Some(at), Reason::LeftOver(token)));
    }
    Ok(machine)
}

/// Position of the instruction of worker `w` that leaves `token` behind.
fn maker(program: &Program, w: usize, token: &Token) -> usize {
    let makes = |instr: &Instr| match instr {
        Instr::Run(cell) => program.rules.cell_effects(cell).makes.contains(token),
        Instr::Recv(made, _) | Instr::Give(made) => made == token,
        _ => false,
    };
    program.rows[w].iter().position(makes).unwrap_or(0)
}

fn reason<E: Into<Reason>>(stop: Stop<E>) -> Reason {
    match stop {
        Stop::Missing(token) => Reason::Missing(token),
        Stop::Twice(token) => Reason::Twice(token),
        Stop::Machine(reason) => reason.into(),
    }
}

/// The machine whose tokens carry nothing but, if they are weight versions, which.
struct Checker<'p> {
    program: &'p Program,
    max_peak: Option<f64>,
    /// Room of every channel.
    bound: u32,
    queues: Vec<VecDeque<Token>>,
    /// How many members started each bucket's reduction.
    n_started: Vec<usize>,
    /// The buckets that a stage's gradients of an update are in.
    buckets_of: FxHashMap<(StageId, u32), Vec<BucketId>>,
    workers: Vec<SyncState>,
    n_agreed: usize,
    activations: ActivationMemory,
    /// Of an asynchronous program, once it has updates.
    versions: Option<Versions>,
}

/// What a worker has done of its synchronisation.
#[derive(Clone, Default)]
struct SyncState {
    phases: FxHashMap<BucketId, Phase>,
    /// Buckets of the worker whose sum it has not waited for.
    n_unsummed: usize,
    last_started: Option<BucketId>,
    has_agreed: bool,
}

/// How far a bucket is on one worker.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Started,
    Summed,
    Stepped,
}

impl<'p> Checker<'p> {
    fn new(program: &'p Program, max_peak: Option<f64>, versions: Option<Versions>) -> Checker<'p> {
        let mut workers = vec![SyncState::default(); program.rows.len()];
        for member in program.buckets.iter().flat_map(|bucket| &bucket.members) {
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
        }
    }

    /// Refuses a piece of work that there is not, or of a stage that the worker has not.
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
        let before = update.checked_sub(1).filter(|_| self.versions.is_some());
        let mut before = before.into_iter().flat_map(buckets);
        match before.find(|b| phases.get(b) != Some(&Phase::Stepped)) {
            None => Ok(()),
            Some(bucket) => {
                let reason = format!("{op} comes before the update of {bucket}");
                Err(Reason::Synchronisation(reason))
            }
        }
    }

    /// Counts what is held in the written order of each row, where ops of both lanes stand: memory is given out in this
    /// order, so that no other holds more.
    fn hold_in_order(&mut self) -> Result<(), Refusal> {
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

    /// Counts what a worker holds while it runs a cell, up to the limit.
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

    /// How many micro-batches a worker holds before a cell for weight work that is put off, where the program moves others.
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
        let made = match &mut self.versions {
            Some(versions) => versions.run(worker, cell, eaten, &self.program.rules)?,
            None => Few::repeat(0, effects.makes.len()),
        };
        if !self.program.rules.works().is_empty() {
            cell.ops().try_for_each(|op| self.check_piece(worker, op))?;
        }
        let has_reduced = !self.workers[worker.index()].phases.is_empty();
        for op in cell.ops().filter(|op| self.program.rules.adds_to_sum(op)) {
            if has_reduced || self.versions.is_some() {
                self.add_gradient(worker, &op)?;
            }
        }
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
            let reason = format!("{worker} starts the reduction of {bucket}, of which it is none");
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
        self.enter(worker, bucket, Phase::Stepped)
    }

    fn give(&mut self, _: WorkerId, _: Lane) -> u32 {
        0
    }

    fn take(&mut self, _: WorkerId, _: Lane, _: u32) {}
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::costs::UniformCosts;
    use crate::lower::{Lowering, lower, offload};
    use crate::schedule::{Shape, find};

    fn program(barrier: bool) -> Program {
        let timetable = find("chimera").expect("known").timetable(&Shape::new(4, 6));
        let how = Lowering { barrier, ..Lowering::default() };
        lower(&timetable.expect("fits"), &how).expect("proven")
    }

    fn is_synchronisation(instr: &Instr) -> bool {
        !matches!(instr, Instr::Run(_) | Instr::Send(..) | Instr::Recv(..))
    }

    /// An asynchronous schedule on three workers, over three steps of three micro-batches.
    pub(in super::super) fn window(schedule: &str) -> Program {
        let timetable = find(schedule).expect("known");
        let timetable = timetable.timetable(&Shape { window: 3, ..Shape::new(3, 3) });
        lower(&timetable.expect("fits"), &Lowering::default()).expect("proven")
    }

    #[test]
    fn synchronisation_that_lacks_or_repeats_something_is_refused() {
        let asynchronous = ["pipedream", "pipedream-2bw"].map(window);
        for whole in [true, false].map(program).into_iter().chain(asynchronous) {
            for (w, row) in whole.rows.iter().enumerate() {
                for at in (0..row.len()).filter(|at| is_synchronisation(&row[*at])) {
                    let mut lacking = whole.clone();
                    let instr = lacking.rows[w].remove(at);
                    assert!(prove(&lacking, None).is_err(), "worker {w} without {instr:?}");
                    for again in [at, row.len()].into_iter().filter(|_| instr != Instr::Agree) {
                        let mut repeating = whole.clone();
                        repeating.rows[w].insert(again, instr);
                        let proof = prove(&repeating, None);
                        assert!(proof.is_err(), "worker {w} with {instr:?} again at {again}");
                    }
                }
            }
        }
    }

    #[test]
    fn updates_wait_for_the_agreement_behind_a_barrier() {
        let mut early = program(true);
        let row = &mut early.rows[2];
        let agree = row.iter().position(|i| *i == Instr::Agree).expect("an agreement");
        row.swap(agree, agree + 1);
        let refusal = prove(&early, None).err().expect("the update comes too early");
        assert!(refusal.to_string().contains("comes before the agreement"), "{refusal}");
    }

    /// The agreement is about the norm of all sums.
    #[test]
    fn sums_come_before_the_agreement_behind_a_barrier() {
        let whole = program(true);
        let last = (0..).map(BucketId).zip(&whole.buckets).max_by_key(|(_, bucket)| bucket.order);
        let (last, bucket) = last.expect("buckets");
        let mut late = whole.clone();
        for member in &bucket.members {
            let row = &mut late.rows[member.index()];
            row.retain(|instr| !matches!(instr, Instr::Reduce(b) | Instr::Await(b) if *b == last));
            let agree = row.iter().position(|i| *i == Instr::Agree).expect("an agreement");
            row.splice(agree + 1..agree + 1, [Instr::Reduce(last), Instr::Await(last)]);
        }
        let refusal = prove(&late, None).err().expect("the sum comes too late");
        let hint = "the agreement comes before a gradient reduction that it needs";
        assert!(refusal.to_string().contains(hint), "{refusal}");
    }

    #[test]
    fn a_memory_limit_marks_the_cell_that_exceeds_it() {
        let timetable = find("gpipe").expect("known").timetable(&Shape::new(2, 5)).expect("fits");
        let how = Lowering { max_peak: Some(3.0), ..Lowering::default() };
        let refusal = lower(&timetable, &how).expect_err("gpipe holds five");
        assert_eq!(refusal.at, Some((WorkerId(0), 3)));
        assert!(refusal.to_string().contains("more than the limit of 3"), "{refusal}");
    }

    /// Of split backwards moves take only what both halves need.
    #[test]
    fn a_memory_limit_that_moves_cannot_keep_tells_what_stays() {
        let timetable = find("zb-h1").expect("known").timetable(&Shape::new(4, 8)).expect("fits");
        let how = Lowering { max_peak: Some(1.0), ..Lowering::default() };
        let moved = offload(timetable, &how, &UniformCosts::EQUAL).expect("sound");
        let refusal = lower(&moved, &how).expect_err("weight work is put off");
        assert!(refusal.to_string().contains("; 1 of them cannot be moved: "), "{refusal}");
        let Reason::Memory { savings, .. } = refusal.reason else { panic!("{refusal}") };
        assert_eq!(savings, Savings { offloads: true, ..Savings::default() });
    }
}
