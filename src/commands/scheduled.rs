//! A schedule as options describe it: a timetable, what passes make of it, and what its stages cost.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use chimera::auto::{AUTO, AutoError, Report, auto};
use chimera::core::analyze::{Costs, NetworkCosts, Refusal, StageCosts, Timeline, simulate};
use chimera::core::lower::{Hoist, Lowering, Program, lower_at};
use chimera::core::search::Search;
use chimera::core::timetable::Timetable;
use chimera::schedules::named;
use chimera::timetable::{is_file, read};
use indicatif::{ProgressBar, ProgressStyle};

use super::costs::CostArgs;
use super::network::NetworkArgs;
use super::progress::spin;
use super::{PassArgs, ShapeArgs};

/// A timetable after its passes, ready to be proven and simulated.
pub(super) struct Scheduled<C = StageCosts> {
    pub(super) timetable: Timetable,
    /// What the search came to, if it is one's.
    pub(super) search: Option<Report>,
    how: Lowering,
    costs: C,
}

impl Scheduled {
    /// What `name` stands for: a schedule at a shape, `auto`, or a file (`-` is standard input); its
    /// stages cost what `costs` says of each. Warns of options that it does not read.
    pub(super) fn of(name: &str, shape: ShapeArgs, costs: &CostArgs) -> Result<Scheduled> {
        let plan = Scheduled::with(name, shape, costs, &|timetable| costs.of_stages(timetable))?;
        shape.warn_of_unread(name);
        Ok(plan)
    }

    /// The same, without a warning, with the costs of a model, cut into as many stages as there are.
    pub(super) fn of_model(name: &str, shape: ShapeArgs, costs: &CostArgs) -> Result<Scheduled> {
        Scheduled::with(name, shape, costs, &|timetable| costs.of_model(timetable))
    }

    /// A timetable from elsewhere.
    pub(super) fn of_timetable(
        timetable: Timetable,
        passes: PassArgs,
        costs: &CostArgs,
    ) -> Result<Scheduled> {
        let stages = costs.of_stages(&timetable)?;
        let how = costs.lowering();
        let timetable = passes.passes()?.apply(timetable, &how, &stages)?;
        Ok(Scheduled { timetable, search: None, how, costs: stages })
    }
}

impl Scheduled<NetworkCosts<StageCosts>> {
    /// The same where messages take what they take on a network, and sums start when it says.
    pub(super) fn on(
        network: &NetworkArgs,
        name: &str,
        shape: ShapeArgs,
        costs: &CostArgs,
    ) -> Result<Self> {
        let plan = Scheduled::with(name, shape, costs, &|timetable| {
            network.of_messages(timetable, costs.of_stages(timetable)?)
        })?;
        shape.warn_of_unread(name);
        Ok(Scheduled { how: Lowering { sync: network.sync, ..plan.how }, ..plan })
    }
}

impl<C: Costs> Scheduled<C> {
    fn with(
        name: &str,
        args: ShapeArgs,
        costs: &CostArgs,
        stages: &dyn Fn(&Timetable) -> Result<C>,
    ) -> Result<Scheduled<C>> {
        if name == AUTO {
            let (timetable, report) = found(args, costs, stages)?;
            let (how, costs) = (costs.lowering(), stages(&timetable)?);
            return Ok(Scheduled { timetable, search: Some(report), how, costs });
        }
        let timetable = if name == "-" || is_file(name) {
            let timetable = read(Path::new(name))?;
            args.fit(name, &timetable)?;
            timetable
        } else {
            let schedule = named(name)?;
            spin("making the schedule", || schedule.timetable(&args.shape()))?
        };
        let costs_of_stages = stages(&timetable)?;
        let passes = args.passes.passes()?;
        let how = costs.lowering();
        let timetable = passes.apply(timetable, &how, &costs_of_stages)?;
        Ok(Scheduled { timetable, search: None, how, costs: costs_of_stages })
    }

    /// Proves it.
    pub(super) fn prove(&self) -> Result<Program, Refusal> {
        spin("proving the schedule", || lower_at(&self.timetable, &self.how, &self.costs))
    }

    /// What its stages cost.
    pub(super) fn costs(&self) -> &C {
        &self.costs
    }

    /// When everything happens.
    pub(super) fn simulate(&self, program: &Program) -> Timeline {
        spin("simulating the schedule", || simulate(program, &self.costs))
    }
}

/// Searches, with its progress on the terminal.
fn found<C: Costs>(
    args: ShapeArgs,
    costs: &CostArgs,
    stages: &dyn Fn(&Timetable) -> Result<C>,
) -> Result<(Timetable, Report)> {
    let how = Search {
        max_peak: costs.lowering().max_peak,
        time_limit: Duration::from_secs_f64(args.search_time()),
        seed: args.search_seed(),
        ..Search::default()
    };
    let passes = args.passes.passes()?;
    if !matches!(passes.hoist, Hoist::By(0) | Hoist::Auto) {
        let reason = format!("it recomputes wherever is best: leave --hoist {} out", passes.hoist);
        return Err(AutoError::Unfit(reason).into());
    }
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{msg} {elapsed}")?);
    let found = auto(args.placement(), &args.shape(), passes, &how, stages, |progress| {
        bar.set_message(Report { progress: *progress, like: None }.to_string());
        bar.tick();
    });
    bar.finish_and_clear();
    found
}
