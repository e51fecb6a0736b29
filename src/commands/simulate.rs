//! `chimera simulate`: how long a step takes, before anything runs.

use anyhow::Result;
use chimera::core::analyze::{Timeline, UniformCosts, simulate};
use chimera::core::lower::{Lowering, Program, lower};
use chimera::core::schedule::find;
use clap::Args;
use serde_json::json;

use super::{CostArgs, ShapeArgs};

/// Simulates one step of a schedule without gradient synchronisation and optimizer
#[derive(Args)]
pub(crate) struct Simulate {
    /// Name of the schedule, see `chimera schedule list`
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
        let timetable = find(&self.name)?.timetable(&self.shape.shape())?;
        let program = lower(&timetable, &Lowering::default())?;
        let timeline = timeline(&program, self.costs);
        let (makespan, busy) = (timeline.makespan(), timeline.busy());
        if self.json {
            let workers: Vec<_> = busy
                .iter()
                .zip(program.peaks())
                .map(|(busy, peak)| {
                    json!({"busy": busy, "idle": makespan - busy, "peak_micro_batches": peak})
                })
                .collect();
            let bubble_ratio = timeline.bubble_ratio();
            println!(
                "{:#}",
                json!({"makespan": makespan, "bubble_ratio": bubble_ratio, "workers": workers})
            );
            return Ok(());
        }
        println!("{}", summary(&program, &timeline));
        println!("worker      busy      idle  peak micro-batches");
        for (w, (busy, peak)) in busy.iter().zip(program.peaks()).enumerate() {
            println!("{w:>6} {busy:>9.3} {:>9.3}  {peak:>18}", makespan - busy);
        }
        let path = timeline.critical_path();
        println!("critical path: {} of {} ops", path.len(), timetable.n_ops());
        Ok(())
    }
}

/// The timeline of a program under costs that hold per whole micro-batch.
pub(super) fn timeline(program: &Program, costs: CostArgs) -> Timeline {
    let uniform = UniformCosts::new(costs.forward, costs.backward, costs.message);
    simulate(program, &uniform.per_units(program.units_per_micro()))
}

/// One line about a simulated step.
pub(super) fn summary(program: &Program, timeline: &Timeline) -> String {
    let peak = program.peaks().iter().copied().fold(0.0, f64::max);
    format!(
        "{}: makespan {:.6}, bubble ratio {:.4}, at most {peak} micro-batches of residuals, {} messages",
        program.schedule(),
        timeline.makespan(),
        timeline.bubble_ratio(),
        program.n_messages(),
    )
    .replace(".000000,", ",")
}
