//! Runs a program through the real engine with stages that only sleep for their time, to compare a
//! simulation with real time. It runs on threads of this process, of which there may be more than
//! cores, since they sleep; or as one of several processes.
//!
//! Everything but compute and sums is real: rows, messages, the order in which a worker waits, and
//! the step sync. Sleeping threads are sometimes woken late; see the comments in `pace.rs` for how
//! that is kept out of the measured times.

mod clocks;
mod comm;
mod dated;
mod pace;
mod rank;
mod reductions;
mod stage;

use std::time::{Duration, Instant};

use chimera_engine::comm::{Comm, Endpoint, Host, Threads, all_gather_json};
use chimera_engine::device::reference::Tensor;
use chimera_engine::engine::run_threads;
use chimera_engine::fault::{Class, Fault};
use chimera_schedule::analyze::{Timeline, bubble_ratio, simulate};
use chimera_schedule::costs::Costs;
use chimera_schedule::ids::Rank;
use chimera_schedule::program::Program;

use clocks::common_epoch;
use dated::{Dated, Posted};
use rank::{RankRun, run_rank};

/// Settings of a run with stand-in stages.
#[derive(Clone, Copy)]
pub struct Execution<'e> {
    /// Seconds per unit of the costs.
    pub seconds_per_unit: f64,
    /// Number of measured runs, after one that is not measured.
    pub n_runs: usize,
    /// Called on each rank's thread before it runs, to set up exact timers.
    pub on_thread: &'e (dyn Fn() + Sync),
}

/// One run, in seconds since the common start.
#[derive(Clone, Debug, Default)]
pub struct Executed {
    /// Times of each op, reduction and update, by the ranks' clocks, which correct for late
    /// wake-ups. Anything without duration is left out, except ops.
    pub timeline: Timeline,
    /// End of the last of them, by the wall clock.
    pub wall_s: f64,
    /// End of the step on all ranks, including the step sync, by the wall clock.
    pub step_s: f64,
}

impl Executed {
    /// The fraction of all workers' time, by the wall clock, in which they did not compute.
    pub fn bubble_ratio(&self) -> f64 {
        bubble_ratio(&self.timeline.busy(), self.wall_s)
    }
}

/// Minimum time that a rank waits for others before it considers them lost.
const PATIENCE: Duration = Duration::from_secs(100);

/// Runs `program` with one thread per worker. Ops, messages, reductions and the step sync take the
/// times given by `costs`. So do updates after the step sync; other updates take no time.
///
/// # Errors
/// If a run would take longer than a clock can represent, or the threads cannot be started.
pub fn execute(
    program: &Program,
    costs: &(impl Costs + Sync),
    how: Execution<'_>,
) -> Result<Vec<Executed>, Fault> {
    let (simulated, patience) = (simulate(program, costs), patience(program, costs, how)?);
    let n_ranks = program.placement().n_workers() as u32;
    let epoch = Instant::now();
    let ranks = run_threads(n_ranks, |comm: &mut Threads<Dated<Tensor>>| {
        run_rank(program, costs, &simulated, how, (epoch, patience), comm)
    })?;
    Ok(all_runs(&ranks, how.n_runs))
}

/// Runs `program` as [`execute`] does, as the rank of `comm`. All ranks must call it, each for one
/// worker, and each gets the runs of all.
///
/// # Errors
/// If the number of ranks is not that of the workers, if a rank fails, or if a run would take
/// longer than a clock can represent.
pub fn execute_rank(
    program: &Program,
    costs: &(impl Costs + Sync),
    how: Execution<'_>,
    comm: &mut dyn Comm<Host>,
) -> Result<Vec<Executed>, Fault> {
    let (me, n_workers) = (comm.rank(), program.placement().n_workers());
    if comm.n_ranks() as usize != n_workers {
        let message = format!(
            "the schedule has {n_workers} worker(s), and {} ranks were started: start {n_workers}, or choose another depth",
            comm.n_ranks()
        );
        return Err(Fault::new(Class::Usage, me, message));
    }
    let (simulated, patience) = (simulate(program, costs), patience(program, costs, how)?);
    let deadline = Instant::now() + patience;
    let epoch = common_epoch(comm, deadline).map_err(|e| e.into_fault(me))?;
    let posted = Posted { inner: &mut *comm, epoch };
    let mine = run_rank(program, costs, &simulated, how, (epoch, patience), posted)?;
    let ranks = all_gather_json(comm, &mine, Instant::now() + patience);
    Ok(all_runs(&ranks.map_err(|e| e.into_fault(me))?, how.n_runs))
}

/// Time that a rank waits for others.
fn patience(program: &Program, costs: &impl Costs, how: Execution<'_>) -> Result<Duration, Fault> {
    let expected = simulate(program, costs).makespan() + costs.agree();
    let expected = expected * how.seconds_per_unit;
    let expected = Duration::try_from_secs_f64(expected).map_err(|e| {
        Fault::new(Class::Usage, Rank(0), format!("a run of {expected:e} s cannot be timed: {e}"))
    })?;
    Ok(PATIENCE.saturating_add(expected.saturating_mul(2)))
}

/// Combines the runs of all ranks, by run.
fn all_runs(ranks: &[Vec<RankRun>], n_runs: usize) -> Vec<Executed> {
    let of_run = |run: usize| {
        let ranks = ranks.iter().filter_map(|rank| rank.get(run));
        let latest = |end: fn(&RankRun) -> f64| ranks.clone().map(end).fold(0.0, f64::max);
        let events = ranks.clone().flat_map(|rank| rank.events.iter().copied()).collect();
        Executed {
            timeline: Timeline { n_workers: ranks.clone().count(), events },
            wall_s: latest(|rank| rank.wall_s),
            step_s: latest(|rank| rank.step_s),
        }
    };
    (0..n_runs).map(of_run).collect()
}
