//! A schedule as options describe it: a timetable, what passes make of it, and what its stages cost.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use chimera::auto::{AUTO, auto};
use chimera::core::analyze::{Refusal, StageCosts, Timeline, simulate};
use chimera::core::lower::{Lowering, Program, lower};
use chimera::core::order::{Progress, Search};
use chimera::core::schedule::find;
use chimera::core::timetable::Timetable;
use chimera::timetable::{is_file, read};
use indicatif::{ProgressBar, ProgressStyle};

use super::costs::CostArgs;
use super::{PassArgs, ShapeArgs};

/// A timetable after its passes, ready to be proven and simulated.
pub(super) struct Plan {
    pub(super) timetable: Timetable,
    /// What the search came to, if it is one's.
    pub(super) search: Option<Progress>,
    how: Lowering,
    costs: StageCosts,
}

impl Plan {
    /// What `name` stands for: a schedule at a shape, `auto`, or a file (`-` is standard input); its
    /// stages cost what `costs` says of each.
    pub(super) fn of(name: &str, shape: ShapeArgs, costs: &CostArgs) -> Result<Plan> {
        Plan::with(name, shape, costs, &|timetable| costs.of_stages(timetable))
    }

    /// The same with the costs of a model, cut into as many stages as there are.
    pub(super) fn of_model(name: &str, shape: ShapeArgs, costs: &CostArgs) -> Result<Plan> {
        Plan::with(name, shape, costs, &|timetable| costs.of_model(timetable))
    }

    /// A timetable from elsewhere.
    pub(super) fn of_timetable(
        timetable: Timetable,
        passes: PassArgs,
        costs: &CostArgs,
    ) -> Result<Plan> {
        let stages = costs.of_stages(&timetable)?;
        let (timetable, how) = passes.passes().apply(timetable, costs.lowering(), &stages)?;
        Ok(Plan { timetable, search: None, how, costs: stages })
    }

    fn with(
        name: &str,
        args: ShapeArgs,
        costs: &CostArgs,
        stages: &dyn Fn(&Timetable) -> Result<StageCosts>,
    ) -> Result<Plan> {
        let (timetable, search) = if name == AUTO {
            let (timetable, progress) = found(args, costs, stages)?;
            (timetable, Some(progress))
        } else if name == "-" || is_file(name) {
            (read(Path::new(name))?, None)
        } else {
            (find(name)?.timetable(&args.shape())?, None)
        };
        let costs_of_stages = stages(&timetable)?;
        let passes = args.passes.passes();
        let (timetable, how) = passes.apply(timetable, costs.lowering(), &costs_of_stages)?;
        Ok(Plan { timetable, search, how, costs: costs_of_stages })
    }

    /// Proves it.
    pub(super) fn prove(&self) -> Result<Program, Refusal> {
        lower(&self.timetable, &self.how)
    }

    /// When everything happens.
    pub(super) fn simulate(&self, program: &Program) -> Timeline {
        simulate(program, &self.costs)
    }
}

/// Searches, with its progress on the terminal.
fn found(
    args: ShapeArgs,
    costs: &CostArgs,
    stages: &dyn Fn(&Timetable) -> Result<StageCosts>,
) -> Result<(Timetable, Progress)> {
    let how = Search {
        max_peak: costs.lowering().max_peak,
        time_limit: Duration::from_secs_f64(args.search_time),
        seed: args.search_seed,
        ..Search::default()
    };
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{msg} {elapsed}")?);
    let splits = args.passes.split_backward;
    let found = auto(args.placement, &args.shape(), splits, &how, stages, |progress| {
        bar.set_message(chimera::auto::report(progress));
        bar.tick();
    });
    bar.finish_and_clear();
    found.map(|found| (found.timetable, found.progress))
}
