//! A schedule as options describe it: a timetable, what passes make of it, and what its stages cost.

use std::path::PathBuf;

use anyhow::Result;
use chimera::core::analyze::{NetworkCosts, Refusal, Timeline, simulate};
use chimera::core::costs::{Costs, StageCosts};
use chimera::core::lower::{Lowering, lower_at};
use chimera::core::program::Program;
use chimera::core::request::{Request, Source};
use chimera::core::search::{Progress, Report};
use chimera::core::timetable::Timetable;
use chimera::schedules::{Named, request};
use chimera::settings::Config;
use indicatif::{ProgressBar, ProgressStyle};

use super::costs::CostArgs;
use super::network::NetworkArgs;
use super::progress::{TICK, spin};
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
    pub(super) fn of(name: &str, shape: &ShapeArgs, costs: &CostArgs) -> Result<Scheduled> {
        let config = drawn(name, shape, costs)?;
        let plan = Scheduled::with(&config, shape, &|timetable| costs.of_stages(timetable))?;
        shape.warn_of_unread(&config);
        Ok(plan)
    }

    /// What `name` stands for, without a warning, with the costs of a model, cut into as many stages as there are.
    pub(super) fn of_model(name: &str, shape: &ShapeArgs, costs: &CostArgs) -> Result<Scheduled> {
        let config = drawn(name, shape, costs)?;
        Scheduled::with(&config, shape, &|timetable| costs.of_model(timetable))
    }

    /// A timetable from elsewhere.
    pub(super) fn of_timetable(
        timetable: Timetable,
        passes: &PassArgs,
        costs: &CostArgs,
    ) -> Result<Scheduled> {
        let config = passes.0.over(&costs.memory.0).drawn()?;
        let (source, shape) = (Source::Timetable(timetable), config.shape());
        let request = Request { source, shape, passes: config.passes() };
        Scheduled::made(&config, request, &|timetable| costs.of_stages(timetable))
    }
}

impl Scheduled<NetworkCosts<StageCosts>> {
    /// What `name` stands for, where messages take what they take on a network, and sums start when it says.
    pub(super) fn on(
        network: &NetworkArgs,
        name: &str,
        shape: &ShapeArgs,
        costs: &CostArgs,
    ) -> Result<Self> {
        let mut config = drawn(name, shape, costs)?;
        config.sync = network.job()?.sync;
        let plan = Scheduled::with(&config, shape, &|timetable| {
            network.of_messages(timetable, costs.of_stages(timetable)?)
        })?;
        shape.warn_of_unread(&config);
        Ok(plan)
    }
}

impl<C: Costs> Scheduled<C> {
    fn with(
        config: &Config,
        shape: &ShapeArgs,
        costs: &impl Fn(&Timetable) -> Result<C>,
    ) -> Result<Scheduled<C>> {
        let request = request(config)?;
        if let Source::Timetable(timetable) = &request.source {
            shape.fit(&config.schedule, timetable)?;
        }
        Scheduled::made(config, request, costs)
    }

    fn made(
        config: &Config,
        request: Request,
        costs: &impl Fn(&Timetable) -> Result<C>,
    ) -> Result<Scheduled<C>> {
        let how =
            Lowering { sync: config.sync, max_peak: config.memory_cap, ..Lowering::default() };
        let bar = ProgressBar::new_spinner();
        bar.set_style(ProgressStyle::with_template("{msg} {elapsed}")?);
        bar.set_message("making the schedule");
        bar.enable_steady_tick(TICK);
        let ordered = request.timetable(costs, &mut |progress: &Progress| {
            bar.set_message(Report { progress: *progress, like: None }.to_string());
        });
        bar.finish_and_clear();
        let ordered = ordered?;
        let (costs, search) = (costs(&ordered.timetable)?, ordered.search.clone());
        Ok(Scheduled { timetable: ordered.passed(&how, &costs)?, search, how, costs })
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

/// What options say of the schedule with a name, or in a file.
fn drawn(name: &str, shape: &ShapeArgs, costs: &CostArgs) -> Result<Config> {
    let schedule = match name {
        "-" => Named::File(PathBuf::from(name)),
        name => name.parse()?,
    };
    let mut config = shape.0.over(&costs.memory.0).drawn()?;
    config.schedule = schedule;
    Ok(config)
}
