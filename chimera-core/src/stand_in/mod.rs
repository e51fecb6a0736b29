//! Runs a program through the real engine with stages that only take their time, so that a simulation can be held
//! against the clock: on threads of this process, of which there may be more than cores, since they sleep.
//!
//! Everything but compute is real: rows, messages, the order in which a worker waits, reductions and the step sync. What
//! sleeps is woken late at times; how that is kept out of the measured times the comments of `pace.rs` say.

mod comm;
mod pace;
mod stage;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use comm::{Dated, Paced};
use pace::Pace;
use rustc_hash::FxHashMap;
use stage::{Blank, StandIn, Times, n_calls};

use crate::analyze::simulate;
use crate::analyze::timeline::{Event, Timeline, Work};
use crate::comm::{Endpoint, Threads};
use crate::costs::Costs;
use crate::device::reference::{Reference, Tensor};
use crate::effects::Token;
use crate::engine::{Job, Optimizer, Patience, Training, Worker, run_threads};
use crate::fault::{Class, Fault};
use crate::ids::{Rank, WorkerId};
use crate::program::Program;

/// How a program is run with stand-in stages.
#[derive(Clone, Copy)]
pub struct Execution<'e> {
    /// Seconds of a unit of the costs.
    pub seconds_per_unit: f64,
    /// Runs that are measured, after one that is not.
    pub n_runs: usize,
    /// Called on the thread of each rank before it runs, to make its timers exact.
    pub on_thread: &'e (dyn Fn() + Sync),
}

/// Compute of one run, in seconds since the common start. What reductions and updates take is left out, since those of
/// stand-in stages have nothing to do.
#[derive(Clone, Debug, Default)]
pub struct Executed {
    /// When each op ran, by the clocks of the ranks, which know how late they were woken.
    pub timeline: Timeline,
    /// When the last op ended, by the wall clock.
    pub wall_s: f64,
}

impl Executed {
    /// The part of all workers' time, by the wall clock, in which they did not compute.
    pub fn bubble_ratio(&self) -> f64 {
        let total = self.wall_s * self.timeline.n_workers as f64;
        if total > 0.0 { 1.0 - self.timeline.busy().iter().sum::<f64>() / total } else { 0.0 }
    }
}

/// A rank waits for others at least so long before it calls them lost.
const PATIENCE: Duration = Duration::from_secs(100);
/// From the moment at which all ranks are ready to the common start.
const NOTICE_S: f64 = 2e-3;

/// Runs `program` with a thread to each worker, where ops and messages take what `costs` say.
///
/// # Errors
/// If a run would take longer than a clock can tell, or the threads cannot be started.
pub fn execute(
    program: &Program,
    costs: &(impl Costs + Sync),
    how: Execution<'_>,
) -> Result<Vec<Executed>, Fault> {
    let expected = simulate(program, costs).makespan() * how.seconds_per_unit;
    let expected = Duration::try_from_secs_f64(expected).map_err(|e| {
        Fault::new(Class::Usage, Rank(0), format!("a run of {expected:e} s cannot be timed: {e}"))
    })?;
    let patience = PATIENCE.saturating_add(expected.saturating_mul(2));
    let job = Job {
        program,
        width: 1,
        micro_batch_size: program.units_per_micro() as usize,
        training: &Training {
            optimizer: Optimizer::sgd(),
            lr: 0.0,
            min_lr: 0.0,
            check_finite: false,
            ..Training::default()
        },
        data: &Blank,
        patience: Patience { first_step: patience, later: patience },
        stop: &AtomicBool::new(false),
        epoch: Instant::now(),
    };
    let n_ranks = program.placement().n_workers() as u32;
    let ranks = run_threads(n_ranks, |comm: &mut Threads<Dated<Tensor>>| {
        (how.on_thread)();
        run_rank(job, comm, costs, how)
    })?;
    let mut runs = vec![Executed::default(); how.n_runs];
    for run in &mut runs {
        run.timeline.n_workers = ranks.len();
    }
    for (run, (events, wall_s)) in ranks.into_iter().flat_map(|rank| rank.into_iter().enumerate()) {
        runs[run].timeline.events.extend(events);
        runs[run].wall_s = runs[run].wall_s.max(wall_s);
    }
    Ok(runs)
}

/// What one worker did in each run that is measured, and when it was done by the wall clock.
fn run_rank(
    job: Job<'_>,
    comm: &mut Threads<Dated<Tensor>>,
    costs: &(impl Costs + Sync),
    how: Execution<'_>,
) -> Result<Vec<(Vec<Event>, f64)>, Fault> {
    let program = job.program;
    // Sums of times that can be told are such times, too.
    let seconds = |units: f64| Duration::try_from_secs_f64(units * how.seconds_per_unit);
    let seconds = |units: f64| seconds(units).unwrap_or_default();
    let (rank, pace) = (comm.rank(), Arc::new(Pace::default()));
    let times = Arc::new(Times::of(program, WorkerId(rank.0 as u16), costs, seconds));
    let delay = |token: &Token| seconds(costs.message(token));
    let comm = Paced { inner: comm, pace: Arc::clone(&pace), delay, early: FxHashMap::default() };
    let graph = program.rules().graph();
    let mut worker =
        Worker::new(job, Reference, comm, |id| Ok(StandIn::new(id, graph, &times, &pace)))?;
    let mut runs = Vec::new();
    for run in 0..=how.n_runs as u64 {
        let ready = job.epoch.elapsed().as_secs_f64();
        let all = worker.all_gather("common start", &ready.to_le_bytes())?;
        let start = job.epoch + Duration::from_secs_f64(common_start(&all, rank)?);
        pace.sleep_until(start);
        pace.take_calls();
        worker.run(run * u64::from(program.window().n_steps()))?;
        let (events, _) = worker.timeline()?;
        if run > 0 {
            let epoch_s = start.duration_since(job.epoch).as_secs_f64();
            let ends = events.iter().filter(|e| matches!(e.work, Work::Cell(_))).map(|e| e.end);
            let wall_s = ends.fold(epoch_s, f64::max) - epoch_s;
            runs.push((clocked(events, &pace.take_calls(), start), wall_s));
        }
    }
    Ok(runs)
}

/// The ops among events, at the times of the calls that they made of their stages.
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

/// When all ranks start, in seconds, given when each was ready.
fn common_start(ready: &[Vec<u8>], rank: Rank) -> Result<f64, Fault> {
    let seconds = |bytes: &Vec<u8>| Some(f64::from_le_bytes(bytes.as_slice().try_into().ok()?));
    let latest = ready.iter().map(seconds).try_fold(0.0, |latest: f64, s| Some(latest.max(s?)));
    let latest = latest.filter(|latest| latest.is_finite());
    let what = "another rank says when it is ready in words that cannot be read";
    Ok(latest.ok_or_else(|| Fault::new(Class::Internal, rank, what.to_string()))? + NOTICE_S)
}
