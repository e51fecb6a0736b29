//! The runs of one rank.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use chimera_engine::comm::Comm;
use chimera_engine::device::reference::{Reference, Tensor};
use chimera_engine::engine::{Job, Optimizer, Patience, Training, WorkPiece, Worker};
use chimera_engine::fault::{Class, Fault};
use chimera_schedule::analyze::timeline::{Event, Timeline, Work};
use chimera_schedule::costs::Costs;
use chimera_schedule::effects::Token;
use chimera_schedule::ids::{BucketId, Rank, WorkerId};
use chimera_schedule::program::{Instr, Program};
use serde::{Deserialize, Serialize};

use super::Execution;
use super::comm::{Delays, Paced, events};
use super::dated::Dated;
use super::pace::Pace;
use super::reductions::ReductionOrder;
use super::stage::{Blank, StandIn, Times, n_calls};

/// Time in seconds from the moment at which all ranks are ready to the common start.
const NOTICE_S: f64 = 2e-3;

/// The events of a rank in one run, in seconds since the common start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RankRun {
    pub(super) events: Vec<Event>,
    /// End of the last event, by the wall clock.
    pub(super) wall_s: f64,
    /// End of the step, by the wall clock.
    pub(super) step_s: f64,
}

/// Costs, converted to real time.
struct InSeconds<'c, C> {
    costs: &'c C,
    seconds_per_unit: f64,
}

impl<C> InSeconds<'_, C> {
    /// Converts costs to a duration. Sums of representable times are taken to be such, too.
    fn seconds(&self, units: f64) -> Duration {
        Duration::try_from_secs_f64(units * self.seconds_per_unit).unwrap_or_default()
    }
}

impl<C: Costs + Sync> Delays for InSeconds<'_, C> {
    fn message(&self, token: &Token) -> Duration {
        self.seconds(self.costs.message(token))
    }

    fn occupies(&self, token: &Token) -> Duration {
        self.seconds(self.costs.occupies(token))
    }

    fn reduce_occupies(&self, bucket: BucketId) -> Duration {
        self.seconds(self.costs.reduce_occupies(bucket))
    }
}

/// Runs one worker; returns its measured runs. Ranks count from `epoch`, by their own clocks.
pub(super) fn run_rank(
    program: &Program,
    costs: &(impl Costs + Sync),
    simulated: &Timeline,
    how: Execution<'_>,
    (epoch, patience): (Instant, Duration),
    comm: impl Comm<Dated<Tensor>>,
) -> Result<Vec<RankRun>, Fault> {
    (how.on_thread)();
    let (data, stop) = (Blank, AtomicBool::new(false));
    let training = Training {
        optimizer: Optimizer::sgd(),
        lr: 0.0,
        min_lr: 0.0,
        check_finite: false,
        ..Training::default()
    };
    let (rank, pace) = (comm.rank(), Arc::new(Pace::default()));
    let me = WorkerId(rank.0 as u16);
    let timed = InSeconds { costs, seconds_per_unit: how.seconds_per_unit };
    let seconds = |units: f64| timed.seconds(units);
    let times = Arc::new(Times::of(program, me, costs, seconds));
    let own_work = |piece: &WorkPiece<'_>| {
        pace.work(times.of_piece(&piece.op));
        Ok(())
    };
    let job = Job {
        program,
        width: 1,
        micro_batch_size: program.units_per_micro() as usize,
        training: &training,
        data: &data,
        patience: Patience { first_step: patience, later: patience },
        stop: &stop,
        own_work: Some(&own_work),
        epoch,
    };
    let reductions = ReductionOrder::of(program, simulated, costs, seconds);
    let agree = seconds(costs.agree());
    let updates = updates(program, me, costs, seconds);
    let comm = Paced::new(comm, Arc::clone(&pace), timed, program, reductions);
    let graph = program.rules().graph();
    let mut worker =
        Worker::new(job, Reference, comm, |id| Ok(StandIn::new(id, graph, &times, &pace)))?;
    let mut runs = Vec::new();
    for run in 0..=how.n_runs as u64 {
        let ready = epoch.elapsed().as_secs_f64();
        let all = worker.all_gather("common start", &ready.to_le_bytes())?;
        let start = common_start(&all, epoch, rank)?;
        pace.sleep_until(start);
        pace.take_calls();
        pace.take_reductions();
        worker.run(run * u64::from(program.window().n_steps()))?;
        pace.occupy(agree);
        let since = |at: Instant| at.saturating_duration_since(start).as_secs_f64();
        let mut events: Vec<Event> = Vec::new();
        for (bucket, takes) in &updates {
            let from = pace.now();
            pace.occupy(*takes);
            let work = Work::Step(*bucket);
            let (start, end) = (since(from), since(from + *takes));
            events.push(Event { worker: me, work, start, end, after: None });
        }
        let over = Instant::now();
        let (ran, ..) = worker.timeline()?;
        if run > 0 {
            let reduced = pace.take_reductions();
            let began = start.duration_since(epoch).as_secs_f64();
            let ends = ran.iter().filter(|e| counts(&e.work, &reduced)).map(|e| e.end - began);
            let wall_s = ends.fold(0.0, f64::max);
            let wall_s = if events.is_empty() { wall_s } else { since(over) };
            let ops = clocked(ran, &pace.take_calls(), start).into_iter();
            let events = ops.chain(self::events(&reduced, me, start)).chain(events).collect();
            runs.push(RankRun { events, wall_s, step_s: since(over) });
        }
    }
    Ok(runs)
}

/// The updates of a worker that take time, because they come after the step sync.
fn updates(
    program: &Program,
    worker: WorkerId,
    costs: &impl Costs,
    seconds: impl Fn(f64) -> Duration,
) -> Vec<(BucketId, Duration)> {
    let row = program.rows()[worker.index()].iter().filter(|_| program.has_barrier());
    let updates = row.filter_map(Instr::updated);
    let updates = updates.map(|bucket| (bucket, seconds(costs.step(bucket))));
    updates.filter(|(_, takes)| !takes.is_zero()).collect()
}

/// Returns true if the end of this work counts towards the length of the step.
fn counts(work: &Work, reduced: &[(BucketId, Instant, Instant)]) -> bool {
    match work {
        Work::Cell(_) => true,
        Work::Reduce(bucket) => reduced.iter().any(|(known, ..)| known == bucket),
        Work::Step(_) | Work::Move(_) => false,
    }
}

/// Returns the ops among the events, with the times of the calls they made of their stages.
fn clocked(events: &[Event], calls: &[(Instant, Instant)], start: Instant) -> Vec<Event> {
    let since = |at: Instant| at.saturating_duration_since(start).as_secs_f64();
    let mut calls = calls.iter();
    let mut clocked = Vec::new();
    for event in events {
        let Work::Cell(cell) = event.work else { continue };
        let n_calls: usize = cell.ops().map(|op| n_calls(&op)).sum();
        let mine = calls.by_ref().take(n_calls);
        let times = mine.map(|(from, to)| (since(*from), since(*to)));
        if let Some((start, end)) = times.reduce(|(start, _), (_, end)| (start, end)) {
            clocked.push(Event { start, end, ..*event });
        }
    }
    clocked
}

/// Determines the common start, from the ranks' ready times in seconds since `epoch`.
fn common_start(ready: &[Vec<u8>], epoch: Instant, rank: Rank) -> Result<Instant, Fault> {
    let seconds = |bytes: &Vec<u8>| Some(f64::from_le_bytes(bytes.as_slice().try_into().ok()?));
    let latest = ready.iter().map(seconds).try_fold(0.0, |latest: f64, s| Some(latest.max(s?)));
    let start = latest.and_then(|latest| Duration::try_from_secs_f64(latest + NOTICE_S).ok());
    let start = start.and_then(|start| epoch.checked_add(start));
    let what = "another rank says when it is ready in words that cannot be read";
    start.ok_or_else(|| Fault::new(Class::Internal, rank, what.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_start_after_the_last_is_ready_or_not_at_all() {
        let epoch = Instant::now();
        let start = |ready: &[f64]| {
            let ready: Vec<_> = ready.iter().map(|s| s.to_le_bytes().to_vec()).collect();
            common_start(&ready, epoch, Rank(0)).map_err(|fault| fault.class)
        };
        assert_eq!(start(&[0.5, 2.0, 1.0]), Ok(epoch + Duration::from_secs_f64(2.0 + NOTICE_S)));
        for never in [1e300, f64::INFINITY] {
            assert_eq!(start(&[0.5, never]), Err(Class::Internal));
        }
        let short = common_start(&[vec![0; 7]], epoch, Rank(0));
        assert_eq!(short.map_err(|fault| fault.class), Err(Class::Internal));
    }
}
