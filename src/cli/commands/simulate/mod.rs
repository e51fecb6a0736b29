//! `chimera simulate`: predicts the time of a step without running anything.

mod execute;
mod links;
mod sharded;
mod simulated;
mod weights;

use std::path::PathBuf;

use anyhow::Result;
use chimera_core::analyze::{IdleTime, NetworkCosts, Timeline, simulate, simulated_idle};
use chimera_core::costs::Costs;
use chimera_core::model::Partition;
use chimera_core::program::Program;
use chimera_core::render::report::title;
use chimera_core::render::{chrome, html, svg};
use chimera_core::timetable::Timetable;
use clap::{Arg, Args, ValueHint};

use self::execute::{ExecuteArgs, Ran};
use self::links::Links;
use self::sharded::PeakGradients;
use self::simulated::{Simulated, Synchronised};
use self::weights::WholeWeights;
use crate::cli::parts::out::{FileFormat, OutArg};
use crate::cli::parts::schedule::costs::CostArgs;
use crate::cli::parts::schedule::network::{NetworkArgs, WorkerCosts};
use crate::cli::parts::schedule::own_work::WorkArgs;
use crate::cli::parts::schedule::profiled::Profiled;
use crate::cli::parts::schedule::rank_map::OnTopology;
use crate::cli::parts::schedule::scheduled::{LostArgs, Scheduled};
use crate::cli::parts::schedule::shape::{ProfiledArgs, ScheduleArg, ShapeArgs};
use crate::cli::parts::terminal::console::write_whole;
use crate::cli::parts::terminal::output::written_path;
use crate::cli::parts::terminal::progress::spin;
use crate::plan::StepCosts;

/// Simulates a step of a schedule without the optimizer
///
/// For an asynchronous schedule, simulates all steps of its window.
#[derive(Args)]
#[command(mut_arg("name", with_default))]
pub(crate) struct Simulate {
    #[command(flatten)]
    schedule: ScheduleArg,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    costs: CostArgs,
    #[command(flatten)]
    profiled: ProfiledArgs,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    lost: LostArgs,
    #[command(flatten)]
    execute: ExecuteArgs,
    /// Also print the closed form of the Chimera paper (equation 1), and its error
    #[arg(long)]
    closed_form: bool,
    /// File for a trace of the step, for ui.perfetto.dev and `chimera trace compare`
    #[arg(long, value_name = "FILE", value_parser = written_path(), value_hint = ValueHint::FilePath)]
    trace: Option<PathBuf>,
    #[command(flatten)]
    out: OutArg,
    #[command(flatten)]
    work: WorkArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A schedule on its network.
struct Planned {
    plan: Scheduled<NetworkCosts<WorkerCosts>>,
    network: NetworkArgs,
    profiled: Option<Profiled>,
}

/// A proven schedule, and the way to report its step.
struct Step<'s> {
    plan: &'s Scheduled<NetworkCosts<WorkerCosts>>,
    network: &'s NetworkArgs,
    program: &'s Program,
    layout: Option<Partition>,
    unit: &'s str,
    format: Option<FileFormat>,
    links: Links<'s>,
}

/// Names the schedule that is simulated by default.
fn with_default(name: Arg) -> Arg {
    let help = name.get_help().map_or_else(String::new, ToString::to_string);
    name.help(format!("{help} [default: chimera]"))
}

impl Simulate {
    pub(crate) fn run(self) -> Result<()> {
        self.network.warn_of_unread();
        let format = self.out.format()?;
        let Planned { plan, network, profiled } = self.plan()?;
        let layout = profiled.as_ref().map(|p| p.layout(&plan.timetable)).transpose()?;
        let unit = if profiled.is_some() { "second" } else { self.costs.unit() };
        let program = plan.prove()?;
        let costs = network.with_sums(plan.costs().clone(), &program)?;
        let traffic = costs.traffic();
        let costs = match &profiled {
            Some(profiled) => profiled.with_step(costs, &program)?,
            None => StepCosts::free(costs),
        };
        let (plan, network, program) = (&plan, &network, &program);
        let mut step =
            Step { plan, network, program, layout, unit, format, links: Links::default() };
        let linked =
            spin("simulating the schedule", || network.on_topology(program, &traffic, &costs))?;
        if let Some(OnTopology { step: linked, mapping }) = &linked {
            step.links = Links { loads: &linked.loads, mapping: mapping.as_ref() };
            return self.report(step, &linked.timeline, &linked.costs(&costs));
        }
        let timeline = spin("simulating the schedule", || simulate(program, &costs));
        self.report(step, &timeline, &costs)
    }

    /// Reports a simulated step.
    fn report<K: Costs + Sync>(
        &self,
        step: Step<'_>,
        timeline: &Timeline,
        costs: &K,
    ) -> Result<()> {
        let Step { plan, network, program, layout, unit, format, links } = step;
        let filled = self.work.fill((program, timeline), &plan.how, costs)?;
        let ran = match &filled {
            Some(filled) => self.execute.measure(&filled.program, &filled.costs)?,
            None => self.execute.measure(program, costs)?,
        };
        let measured = match ran {
            Ran::Not => None,
            Ran::Here(measured) => Some(measured),
            Ran::Elsewhere => return Ok(()),
        };
        let sync = Synchronised::of(program, timeline, costs);
        if sync.sums == 0.0 {
            let width_takes_time = sync.agreement > 0.0 || !links.loads.is_empty();
            network.warn_of_free_reductions(width_takes_time);
        }
        let bubble = simulated_idle(program, timeline, costs);
        let simulated = Simulated {
            bubble: IdleTime::shares(&bubble, timeline.makespan()),
            closed_form: self
                .closed_form
                .then(|| network.closed_form(program, plan.costs()))
                .transpose()?,
            n_ranks: network.job()?.schedule.width * timeline.n_workers,
            plan,
            program,
            timeline,
            links,
            unit,
            layout,
            filled,
            measured,
            sync,
            gradients: PeakGradients::of(program, &network.job()?)?,
            weights: WholeWeights::of(program, (network.job()?.schedule.width, timeline), costs),
        };
        self.deliver(format, &simulated, costs)
    }

    /// Makes the schedule on its network, without lost ranks, with the costs of a profile if one is
    /// named.
    fn plan(&self) -> Result<Planned> {
        let name = self.schedule.name();
        let profiled =
            Profiled::open(&self.profiled, name, &self.shape, &self.costs, &self.network)?;
        if profiled.is_none() {
            self.network.check_unit(&self.costs)?;
        }
        let chosen = self.shape.chooses_placement(name);
        let of_stages = |profiled: &Option<Profiled>, timetable: &Timetable| match profiled {
            Some(profiled) => self.costs.with_transfers(profiled.costs(timetable)?, timetable),
            None => self.costs.of(chosen, timetable),
        };
        let plan = Scheduled::on(
            &self.network,
            name,
            &self.shape,
            &self.costs,
            (&|timetable| of_stages(&profiled, timetable), profiled.is_some()),
        )?;
        let (plan, profiled) = match profiled {
            Some(profiled) => {
                let (plan, beside) = profiled.beside_others(plan, &self.network, &self.costs)?;
                (plan, Some(beside))
            }
            None => (plan, None),
        };
        let width = self.network.job()?.schedule.width;
        let network =
            self.network.without(&self.lost.ranks(), plan.timetable.placement.n_workers())?;
        let plan = plan.without(&self.lost, width, &|whole, narrowed| {
            network.of_messages(narrowed, false, of_stages(&profiled, whole)?)
        })?;
        Ok(Planned { plan, network, profiled })
    }

    /// Writes the trace, and the figures or the drawing in the chosen format.
    fn deliver<K: Costs>(
        &self,
        format: Option<FileFormat>,
        simulated: &Simulated<'_, NetworkCosts<WorkerCosts>, K>,
        costs: &K,
    ) -> Result<()> {
        let (drawn, timeline) = simulated.drawn();
        if let Some(path) = &self.trace {
            write_whole(path, &chrome::trace(drawn, timeline))?;
        }
        let title = title(&simulated.plan.timetable, simulated.unit);
        match format {
            Some(FileFormat::Csv) => self.out.deliver(&workers_csv(drawn, timeline)),
            Some(FileFormat::Html) => self.out.deliver(&html::page(drawn, timeline, &title)),
            Some(FileFormat::Json) => self.out.deliver(&format!("{:#}", simulated.json(costs))),
            None | Some(FileFormat::Text) if self.json => {
                self.out.deliver(&format!("{:#}", simulated.json(costs)))
            }
            None | Some(FileFormat::Text) => self.out.deliver(&simulated.text()?),
            Some(format) => self
                .out
                .draw(format, &svg::on_links(drawn, timeline, &title, simulated.links.loads)),
        }
    }
}

/// The busy and idle time and the peak of each worker as CSV.
fn workers_csv(program: &Program, timeline: &Timeline) -> String {
    let makespan = timeline.makespan();
    let rows = timeline.busy().into_iter().zip(program.peaks()).enumerate();
    let rows =
        rows.map(|(worker, (busy, peak))| format!("{worker},{busy},{},{peak}\n", makespan - busy));
    "worker,busy,idle,peak_micro_batches\n".to_string() + &rows.collect::<String>()
}
