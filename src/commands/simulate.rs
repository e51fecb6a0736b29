//! `chimera simulate`: how long a step takes, before anything runs.

use std::fmt::Write;

use anyhow::Result;
use chimera::core::analyze::{Timeline, simulate};
use chimera::core::lower::{Program, lower};
use clap::Args;
use serde_json::json;

use super::costs::CostArgs;
use super::{ShapeArgs, print, timetable};

/// Simulates one step of a schedule without gradient synchronisation and optimizer
#[derive(Args)]
pub(crate) struct Simulate {
    /// Name of the schedule, see `chimera schedule list`, or a timetable in a `.json` or `.csv` file
    name: String,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    costs: CostArgs,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

impl Simulate {
    pub(crate) fn run(self) -> Result<()> {
        let timetable = timetable(&self.name, self.shape)?;
        let stages = self.costs.of_stages(&timetable)?;
        let passes = self.shape.passes.passes();
        let (timetable, how) = passes.apply(timetable, self.costs.lowering(), &stages)?;
        let program = lower(&timetable, &how)?;
        let timeline = simulate(&program, &stages);
        let (makespan, busy) = (timeline.makespan(), timeline.busy());
        let workers = busy.iter().zip(program.peaks());
        if self.json {
            let worker = |(busy, peak): (&f64, &f64)| json!({"busy": busy, "idle": makespan - busy, "peak_micro_batches": peak});
            let report = json!({
                "makespan": makespan,
                "bubble_ratio": timeline.bubble_ratio(),
                "workers": workers.map(worker).collect::<Vec<_>>(),
            });
            return print(format!("{report:#}"));
        }
        let mut report = summary(&program, &timeline);
        report.push_str("\nworker      busy      idle  peak micro-batches\n");
        for (w, (busy, peak)) in workers.enumerate() {
            writeln!(report, "{w:>6} {busy:>9.3} {:>9.3}  {peak:>18}", makespan - busy)?;
        }
        let path = timeline.critical_path();
        write!(report, "critical path: {} of {} ops", path.len(), timetable.n_ops())?;
        print(report)
    }
}

/// One line about a simulated step.
pub(super) fn summary(program: &Program, timeline: &Timeline) -> String {
    let peak = program.peaks().iter().copied().fold(0.0, f64::max);
    let makespan = (timeline.makespan() * 1e6).round() / 1e6;
    format!(
        "{}: makespan {makespan}, bubble ratio {:.4}, residuals of at most {peak} micro-batch(es), {} messages",
        program.schedule(),
        timeline.bubble_ratio(),
        program.n_messages(),
    )
}
