//! A program run with stages that sleep, beside its simulation.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use chimera_core::analyze::{IdleTime, link, path_length, simulate, simulated_idle};
use chimera_core::costs::Costs;
use chimera_core::program::Program;
use chimera_core::stand_in::{Execution, execute};
use clap::Args;
use serde_json::{Value, json};

use crate::cli::parts::bubble::{by_cause, causes};
use crate::cli::parts::console::{duration, figure, tell};
use crate::cli::parts::costs::number;
use crate::cli::parts::progress::spin;

/// Runs that are measured, after one that is not.
const N_RUNS: usize = 5;
/// The most seconds for all runs.
const MAX_S: f64 = 3600.0;
/// Seconds from which on it is said beforehand how long the runs take.
const SAID_S: f64 = 5.0;

/// Whether the schedule is run, too.
#[derive(Args)]
pub(crate) struct ExecuteArgs {
    /// Also runs the schedule, on threads with stages that sleep for as long as their costs say, and prints
    /// what was measured beside what was simulated
    #[arg(long, value_name = "SECONDS_PER_UNIT", value_parser = seconds)]
    execute: Option<f64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match number(text)? {
        0.0 => Err("ops that take no time cannot be measured".into()),
        seconds => Ok(seconds),
    }
}

/// The run of median length, in units of the costs.
pub(crate) struct Measured {
    seconds_per_unit: f64,
    simulated: Figures,
    measured: Figures,
    /// The measured bubble by cause.
    bubble: IdleTime,
    /// Makespans of all runs, the shortest first.
    makespans: Vec<f64>,
}

struct Figures {
    makespan: f64,
    bubble_ratio: f64,
    /// Simulated length of the critical path.
    critical_path: f64,
}

impl ExecuteArgs {
    /// Runs `program`, if that is asked for. Reductions are free: those of stages that sleep have nothing to do.
    pub(crate) fn measure(
        &self,
        program: &Program,
        costs: &(impl Costs + Sync),
    ) -> Result<Option<Measured>> {
        let Some(seconds_per_unit) = self.execute else { return Ok(None) };
        let simulated = simulate(program, costs);
        let makespan = simulated.makespan();
        let whole = makespan * seconds_per_unit * (N_RUNS + 1) as f64;
        ensure!(makespan > 0.0, "--execute: the schedule takes no time: give its stages costs");
        ensure!(
            whole <= MAX_S,
            "--execute {seconds_per_unit}: {} runs would take {}, more than an hour: give a unit fewer seconds",
            N_RUNS + 1,
            duration(whole)
        );
        if whole > SAID_S {
            tell(format!("running the schedule {} times takes {}", N_RUNS + 1, duration(whole)));
        }
        let how = Execution { seconds_per_unit, n_runs: N_RUNS, on_thread: &exact_timers };
        let mut runs = spin("running the schedule", || execute(program, costs, how))?;
        runs.sort_by(|a, b| a.wall_s.total_cmp(&b.wall_s));
        let makespans: Vec<f64> = runs.iter().map(|run| run.wall_s / seconds_per_unit).collect();
        let run = runs.swap_remove(N_RUNS / 2);
        let (bubble_ratio, mut timeline) = (run.bubble_ratio(), run.timeline);
        for event in &mut timeline.events {
            event.start /= seconds_per_unit;
            event.end /= seconds_per_unit;
        }
        link(program, &mut timeline, costs);
        let idle = simulated_idle(program, &timeline, costs);
        let mut bubble = IdleTime::shares(&idle, makespans[N_RUNS / 2]);
        bubble.other += bubble_ratio - bubble.total(); // by how much the last op ended late
        let measured = Figures {
            makespan: makespans[N_RUNS / 2],
            bubble_ratio,
            critical_path: path_length(program, &timeline.critical_path(), costs),
        };
        let bubble_ratio = simulated.bubble_ratio();
        let simulated = Figures { makespan, bubble_ratio, critical_path: makespan };
        Ok(Some(Measured { seconds_per_unit, simulated, measured, bubble, makespans }))
    }
}

impl Measured {
    /// Adds what was measured to a report in JSON.
    pub(crate) fn add_to(&self, report: &mut Value) {
        let Figures { makespan, bubble_ratio, critical_path } = self.measured;
        report["seconds_per_unit"] = json!(self.seconds_per_unit);
        report["measured_makespan"] = json!(makespan);
        report["measured_bubble"] = json!(bubble_ratio);
        report["measured_bubble_by_cause"] = causes(&self.bubble);
        report["measured_critical_path"] = json!(critical_path);
        report["measured_makespans"] = json!(self.makespans);
    }

    /// A table of what was simulated and measured.
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
        for (what, was, is, error) in [
            ("makespan", figure(simulated.makespan), figure(measured.makespan), makespan),
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
        ] {
            write!(text, "\n{what:14} {was:>10} {is:>10} {error:>9}")?;
        }
        text.push_str("\n(critical path: the simulated length of the ops and messages that determined the run)");
        write!(text, "\n{}", by_cause("measured bubble", bubble))?;
        Ok(text)
    }
}

/// Lets the timers of this thread end when they are asked to. Where that cannot be, runs are only less exact.
fn exact_timers() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}
