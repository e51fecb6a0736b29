//! Runs a program with stages that only sleep, for comparison with its simulation.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use chimera_core::analyze::{
    IdleTime, Work, behind_makespan, link, path_length, simulate, simulated_idle,
};
use chimera_core::comm::{Comm, Host};
use chimera_core::costs::Costs;
use chimera_core::fault::Fault;
use chimera_core::ids::{BucketId, Rank};
use chimera_core::program::Program;
use chimera_core::render::report::by_cause;
use chimera_testkit::stand_in::{Executed, Execution, execute, execute_rank};
use clap::Args;
use serde_json::{Value, json};

use crate::cli::commands::train::ranks;
use crate::cli::parts::schedule::costs::number;
use crate::cli::parts::terminal::console::{duration, figure, tell};
use crate::cli::parts::terminal::progress::spin;
use crate::cli::parts::training::bubble::causes;
use crate::settings::{Survive, Transport};
use crate::transport::{Over, choose};

/// Number of measured runs, after one that is not measured.
const N_RUNS: usize = 5;
/// The longest time for all runs in seconds.
const MAX_S: f64 = 3600.0;
/// If the runs take longer than this many seconds, their time is announced.
const SAID_S: f64 = 5.0;

/// The option that also runs the schedule.
#[derive(Args)]
#[command(mut_args(|arg| arg.allow_negative_numbers(true)))]
pub(crate) struct ExecuteArgs {
    /// Also run the schedule, on threads or as the ranks of a launcher, with stages that sleep for their costs, and compare the
    /// measured step with the simulated one
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    execute: Option<f64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match number(text)? {
        0.0 => Err("ops that take no time cannot be measured".into()),
        seconds => Ok(seconds),
    }
}

/// The result of running the schedule.
pub(crate) enum Ran {
    /// No run was requested.
    Not,
    /// The schedule ran here: on threads, or on ranks of which this process is the first.
    Here(Measured),
    /// The schedule ran on ranks, and rank 0, another process, reports it.
    Elsewhere,
}

/// The run of median length, with times in units of the costs.
pub(crate) struct Measured {
    seconds_per_unit: f64,
    simulated: Figures,
    measured: Figures,
    /// The measured bubble by cause.
    bubble: IdleTime,
    /// Makespans of all runs, shortest first.
    makespans: Vec<f64>,
}

struct Figures {
    makespan: f64,
    /// Makespan plus the step sync.
    step: f64,
    bubble_ratio: f64,
    /// Simulated length of the critical path of ops and messages.
    critical_path: f64,
}

impl ExecuteArgs {
    /// Runs `program`, if requested.
    pub(crate) fn measure(&self, program: &Program, costs: &(impl Costs + Sync)) -> Result<Ran> {
        let Some(seconds_per_unit) = self.execute else { return Ok(Ran::Not) };
        ensure!(
            !program.rules().has_moves() && !program.shards_weights(),
            "--execute: stand-in stages have nothing to move or to share: leave --bpipe, --offload and --zero 3 out"
        );
        let simulated = simulate(program, costs);
        let step = simulated.makespan() + behind_makespan(program, &simulated, costs);
        let whole = step * seconds_per_unit * (N_RUNS + 1) as f64;
        ensure!(step > 0.0, "--execute: the schedule takes no time: give its stages costs");
        ensure!(
            whole <= MAX_S,
            "--execute {seconds_per_unit}: {} runs would take {}, more than an hour: give a unit fewer seconds",
            N_RUNS + 1,
            duration(whole)
        );
        let has_updates =
            (0..program.buckets().len() as u32).any(|b| costs.step(BucketId(b)) > 0.0);
        ensure!(
            program.has_barrier() || !has_updates,
            "--execute: updates take time only after the step sync, and this schedule has them before \
             it: choose a synchronous schedule, or leave --profile out"
        );
        let say_how_long = || {
            if whole > SAID_S {
                tell(format!(
                    "running the schedule {} times takes {}",
                    N_RUNS + 1,
                    duration(whole)
                ));
            }
        };
        let how = Execution { seconds_per_unit, n_runs: N_RUNS, on_thread: &exact_timers };
        let is_mpi = choose(Transport::Auto, Survive::Off)?.0 == Over::Mpi;
        let runs = if is_mpi {
            let as_rank = |comm: &mut dyn Comm<Host>, _: &str| -> Result<_, Fault> {
                let is_first = comm.rank() == Rank(0);
                if is_first {
                    say_how_long();
                }
                let runs = execute_rank(program, costs, how, comm)?;
                Ok(is_first.then_some(runs))
            };
            ranks::with(0, &as_rank)?
        } else {
            say_how_long();
            Some(spin("running the schedule", || execute(program, costs, how))?)
        };
        let Some(runs) = runs else { return Ok(Ran::Elsewhere) };
        let compute = simulated.events.iter().filter(|e| matches!(e.work, Work::Cell(_)));
        let simulated = Figures {
            makespan: simulated.makespan(),
            step,
            bubble_ratio: simulated.bubble_ratio(),
            critical_path: compute.map(|event| event.end).fold(0.0, f64::max),
        };
        Ok(Ran::Here(Measured::of(runs, simulated, program, costs, seconds_per_unit)))
    }
}

impl Measured {
    /// Compares the run of median length with its simulation.
    fn of(
        mut runs: Vec<Executed>,
        simulated: Figures,
        program: &Program,
        costs: &(impl Costs + Sync),
        seconds_per_unit: f64,
    ) -> Measured {
        runs.sort_by(|a, b| a.wall_s.total_cmp(&b.wall_s));
        let makespans: Vec<f64> = runs.iter().map(|run| run.wall_s / seconds_per_unit).collect();
        let run = runs.swap_remove(N_RUNS / 2);
        let (bubble_ratio, mut timeline) = (run.bubble_ratio(), run.timeline);
        for event in &mut timeline.events {
            event.start /= seconds_per_unit;
            event.end /= seconds_per_unit;
        }
        let idle = simulated_idle(program, &timeline, costs);
        let mut bubble = IdleTime::shares(&idle, makespans[N_RUNS / 2]);
        bubble.other += bubble_ratio - bubble.total(); // how late the last op ended
        timeline.events.retain(|event| matches!(event.work, Work::Cell(_)));
        link(program, &mut timeline, costs);
        let measured = Figures {
            makespan: makespans[N_RUNS / 2],
            step: run.step_s / seconds_per_unit,
            bubble_ratio,
            critical_path: path_length(program, &timeline.critical_path(), costs),
        };
        Measured { seconds_per_unit, simulated, measured, bubble, makespans }
    }

    /// Adds the measurements to a report in JSON.
    pub(crate) fn add_to(&self, report: &mut Value) {
        let Figures { makespan, step, bubble_ratio, critical_path } = self.measured;
        report["seconds_per_unit"] = json!(self.seconds_per_unit);
        report["measured_makespan"] = json!(makespan);
        report["measured_step"] = json!(step);
        report["measured_bubble"] = json!(bubble_ratio);
        report["measured_bubble_by_cause"] = causes(&self.bubble);
        report["measured_critical_path"] = json!(critical_path);
        report["measured_makespans"] = json!(self.makespans);
    }

    /// A table of simulated and measured figures.
    pub(crate) fn table(&self) -> Result<String> {
        let Measured { simulated, measured, bubble, makespans, .. } = self;
        let [least, most] = [makespans.first(), makespans.last()].map(|x| x.copied());
        let spread = least.zip(most).context("nothing was measured")?;
        let mut text = format!(
            "\nrun with {} s per unit, the median of {N_RUNS} runs of {} to {}:",
            self.seconds_per_unit,
            figure(spread.0),
            figure(spread.1)
        );
        write!(text, "\n{:14} {:>10} {:>10} {:>9}", "", "simulated", "measured", "error")?;
        let relative = |was: f64, is: f64| format!("{:+.1} %", (is / was - 1.0) * 100.0);
        let points =
            format!("{:+.2} pts", (measured.bubble_ratio - simulated.bubble_ratio) * 100.0);
        let makespan = relative(simulated.makespan, measured.makespan);
        let path = relative(simulated.critical_path, measured.critical_path);
        let step = relative(simulated.step, measured.step);
        let step = ("with step sync", figure(simulated.step), figure(measured.step), step);
        let step = Some(step).filter(|_| simulated.step > simulated.makespan);
        let makespan =
            ("makespan", figure(simulated.makespan), figure(measured.makespan), makespan);
        for (what, was, is, error) in [makespan].into_iter().chain(step).chain([
            (
                "bubble ratio",
                format!("{:.4}", simulated.bubble_ratio),
                format!("{:.4}", measured.bubble_ratio),
                points,
            ),
            (
                "critical path",
                figure(simulated.critical_path),
                figure(measured.critical_path),
                path,
            ),
        ]) {
            write!(text, "\n{what:14} {was:>10} {is:>10} {error:>9}")?;
        }
        text.push_str("\n(critical path: the simulated length of the ops and messages that determined the run)");
        write!(text, "\n{}", by_cause("measured bubble", bubble))?;
        Ok(text)
    }
}

/// Makes the timers of this thread exact. If that is not possible, runs are only less accurate.
fn exact_timers() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}
