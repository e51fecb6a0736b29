//! `chimera schedule combine`: puts two models onto the same workers, in one step.

use anyhow::{Context, Result};
use chimera_core::lower::combine;
use chimera_core::search::{Report, Search, search};
use chimera_core::timetable::Timetable;
use clap::Args;

use super::Drawing;
use crate::cli::parts::schedule::costs::CostArgs;
use crate::cli::parts::schedule::entry::Contender;
use crate::cli::parts::schedule::scheduled::Scheduled;
use crate::cli::parts::schedule::shape::{PassArgs, ShapeArgs};
use crate::cli::parts::terminal::progress::spin;

/// Combines the schedules of two models on the same workers
///
/// A search orders the ops of both, so that each fills the idle time of the other.
#[derive(Args)]
pub(super) struct Combine {
    /// Schedule of the first model, with options of its own in the same quotes, such as "1f1b --micro-batches 4"; or a file
    first: String,
    /// Schedule of the second model, in the same form
    second: String,
    /// Let the second model run through the workers in the opposite direction
    #[arg(long)]
    opposite: bool,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    costs: CostArgs,
    #[command(flatten)]
    drawing: Drawing,
}

impl Combine {
    pub(super) fn run(self) -> Result<()> {
        let format = self.drawing.format()?;
        let made = |text: &str| -> Result<Timetable> {
            let entry = Contender::parse(text, &self.shape)?;
            Ok(entry.scheduled(&self.costs)?.timetable)
        };
        let first = made(&self.first)?;
        let mut second = made(&self.second)?;
        if self.opposite {
            second = second.opposite();
        }
        let combined = combine(&first, &second)?;
        let max_peak = self.costs.memory.0.clone().drawn()?.passes.memory_cap;
        let how = Search { max_peak, ..Search::default() };
        let schedule = combined.schedule.clone();
        let costs = self.costs.of_stages(&combined)?;
        let starts = [(combined, costs)];
        let found = spin("combining the schedules", || search(&starts, &how, |_| {}));
        let found = found
            .with_context(|| format!("no order of {schedule} keeps to --memory-cap: allow more"))?;
        let timetable = Timetable { schedule, ..found.timetable };
        let mut plan = Scheduled::of_timetable(timetable, &PassArgs::default(), &self.costs)?;
        plan.search = Some(Report::under_way(found.progress));
        self.drawing.show(format, plan, self.costs.unit())
    }
}
