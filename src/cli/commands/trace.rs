//! `chimera trace compare`: compares two timelines.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueHint};

use crate::cli::parts::schedule::costs::number;
use crate::cli::parts::terminal::console::{figure, print, tell};
use crate::cli::parts::training::comparison::{Comparison, TraceSummary, median};
use crate::formats::trace::read;

/// Compares traces of steps
#[derive(Subcommand)]
pub(crate) enum TraceCommand {
    /// Compares two traces, e.g. of a plan and of a run
    Compare(Compare),
}

impl TraceCommand {
    pub(crate) fn run(self) -> Result<()> {
        let TraceCommand::Compare(compare) = self;
        compare.run()
    }
}

/// Compares two traces, e.g. of a plan and of a run
///
/// If a trace has several steps, its step of median length is compared. If the second has more ranks than the first, each of
/// its pipeline groups is compared with the first.
#[derive(Args)]
pub(crate) struct Compare {
    /// Trace of a plan, from `simulate --trace` or `schedule export --format chrome`
    #[arg(value_name = "PLAN", value_hint = ValueHint::FilePath)]
    plan: PathBuf,
    /// Trace of a run, from `train --trace`
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    trace: PathBuf,
    /// Seconds per unit of time in the plan
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds, allow_negative_numbers = true)]
    seconds_per_unit: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match number(text)? {
        0.0 => Err("the plan's times would all be 0: give the duration of a unit".into()),
        seconds => Ok(seconds),
    }
}

impl Compare {
    fn run(self) -> Result<()> {
        let of = |path, scale| -> Result<TraceSummary> {
            Ok(TraceSummary::of(&median(read(path)?)?, scale))
        };
        let planned = of(&self.plan, self.seconds_per_unit)?;
        let measured = of(&self.trace, 1.0)?;
        let comparison = Comparison::of(planned, measured)
            .with_context(|| format!("{} and {}", self.plan.display(), self.trace.display()))?;
        if self.json {
            return print(serde_json::to_string_pretty(&comparison)?);
        }
        print(comparison.table())?;
        if let Some(factor) = comparison.other_unit() {
            let unit = figure(self.seconds_per_unit * factor);
            tell(format!(
                "the plan counts in another unit: with --seconds-per-unit {unit} its work takes as long as the run's"
            ));
        }
        Ok(())
    }
}
