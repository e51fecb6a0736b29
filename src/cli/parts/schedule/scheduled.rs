//! Schedules from options: a timetable, the passes over it, and the costs of its stages.

use std::path::PathBuf;

use anyhow::{Context, Error, Result, ensure};
use chimera_core::analyze::{NetworkCosts, Refusal, Savings, Timeline, simulate};
use chimera_core::costs::{Costs, StageCosts, UniformCosts};
use chimera_core::ids::Rank;
use chimera_core::lower::{Lowering, Offloading, Recompute, lower_at, narrow};
use chimera_core::op::Kind;
use chimera_core::program::Program;
use chimera_core::request::{Ordered, Request, Source};
use chimera_core::search::{Progress, Report};
use chimera_core::timetable::Timetable;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::parts::schedule::costs::CostArgs;
use crate::cli::parts::schedule::network::{NetworkArgs, WorkerCosts};
use crate::cli::parts::schedule::shape::{PassArgs, ShapeArgs};
use crate::cli::parts::terminal::progress::{keep_drawing, spin};
use crate::plan::request;
use crate::plan::{
    by_file_name, endless_if_refused, name_by_file, recomputed_at, recomputed_within_cap,
};
use crate::settings::schedules::Named;
use crate::settings::{Config, RecomputedStages, Scaling, UnfitStages};

/// Ranks that have died.
#[derive(Args)]
pub(crate) struct LostArgs {
    /// Ranks that died; shows the step of the others, as `train --survive narrow` continues
    #[arg(long, value_name = "RANKS", value_delimiter = ',', value_parser = rank, allow_hyphen_values = true)]
    lost: Vec<u32>,
}

/// Parses the number of a rank.
fn rank(word: &str) -> Result<u32, String> {
    let why = |_| format!("`{word}` is not a rank: ranks are numbered from 0, such as 2 or 0,3");
    word.trim().parse().map_err(why)
}

impl LostArgs {
    /// Returns the ranks.
    pub(crate) fn ranks(&self) -> Vec<Rank> {
        self.lost.iter().copied().map(Rank).collect()
    }

    fn list(&self) -> String {
        self.lost.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    }
}

/// A timetable after its passes, ready to be proven and simulated.
pub(crate) struct Scheduled<C = StageCosts> {
    pub(crate) timetable: Timetable,
    /// The report of the search, if there was one.
    pub(crate) search: Option<Report>,
    /// The stages that recompute, if they were chosen automatically.
    pub(crate) recomputed: Option<String>,
    /// Whether activations are offloaded, if that was chosen together with them.
    pub(crate) offloads: Option<bool>,
    pub(crate) how: Lowering,
    /// The savings in activation memory that were requested from the passes.
    savings: Savings,
    /// The name of the schedule on the command line.
    named: Named,
    costs: C,
}

/// Costs for making a program, with reductions that start at the same places as in a training.
pub(crate) trait Foreseen: Costs {
    /// Returns the part of the costs that a training knows.
    fn known(&self) -> &impl Costs;
}

impl Foreseen for StageCosts {
    fn known(&self) -> &impl Costs {
        self
    }
}

impl Foreseen for NetworkCosts<WorkerCosts> {
    fn known(&self) -> &impl Costs {
        self.compute()
    }
}

impl Scheduled {
    /// Makes the schedule with this name: one at a shape, `auto`, or a file (`-` is standard
    /// input). `costs` has the costs of each stage. Warns of options that the schedule does not
    /// read.
    pub(crate) fn of(name: &str, shape: &ShapeArgs, costs: &CostArgs) -> Result<Scheduled> {
        Scheduled::of_config(drawn(name, shape, costs)?, shape, costs)
    }

    /// Makes a schedule as [`of`](Self::of) does, but only cuts micro-batches if the options say
    /// so.
    pub(crate) fn of_whole_micro_batches(
        name: &str,
        shape: &ShapeArgs,
        costs: &CostArgs,
    ) -> Result<Scheduled> {
        let mut config = drawn(name, shape, costs)?;
        config.schedule.scaling = Scaling::Is(config.schedule.scaling.of_shape());
        Scheduled::of_config(config, shape, costs)
    }

    fn of_config(config: Config, shape: &ShapeArgs, costs: &CostArgs) -> Result<Scheduled> {
        let plan = Scheduled::with(&config, shape, &|timetable| {
            costs.of(config.schedule.chooses_placement(), timetable)
        })?;
        shape.warn_of_unread(&config);
        costs.warn_of_unread(&plan.timetable, &config);
        Ok(plan)
    }

    /// Makes the schedule with this name, without warnings. `costs` are those of a whole model,
    /// which is cut into the schedule's stages.
    pub(crate) fn of_model(name: &str, shape: &ShapeArgs, costs: &CostArgs) -> Result<Scheduled> {
        let config = drawn(name, shape, costs)?;
        Scheduled::with(&config, shape, &|timetable| costs.of_model(timetable))
    }

    /// Makes a schedule from a given timetable.
    pub(crate) fn of_timetable(
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

impl Scheduled<NetworkCosts<WorkerCosts>> {
    /// Makes the schedule with this name on a network. `of_stages` returns the costs of stages, and
    /// may know their layers. The network determines the costs of messages, and its options the
    /// start of reductions.
    pub(crate) fn on(
        network: &NetworkArgs,
        name: &str,
        shape: &ShapeArgs,
        costs: &CostArgs,
        (of_stages, knows_layers): (&dyn Fn(&Timetable) -> Result<StageCosts>, bool),
    ) -> Result<Self> {
        let mut config = said(name, shape, costs)?;
        if !knows_layers {
            config.check_whole_stages().map_err(Error::msg)?;
        }
        config.replicas = network.job()?.replicas;
        let bpipe = config.passes.bpipe;
        let plan = Scheduled::with(&config, shape, &|timetable| {
            let goes_to_partners = bpipe || timetable.has(Kind::Keep);
            network.of_messages(timetable, goes_to_partners, of_stages(timetable)?)
        })?;
        network.warn_of_unmoved(&plan.timetable);
        shape.warn_of_unread(&config);
        costs.warn_of_unread(&plan.timetable, &config);
        Ok(plan)
    }

    /// Replaces the costs of the timetable's stages.
    pub(crate) fn at(mut self, network: &NetworkArgs, stages: StageCosts) -> Result<Self> {
        let goes_to_partners = self.timetable.has(Kind::Keep);
        self.costs = network.of_messages(&self.timetable, goes_to_partners, stages)?;
        Ok(self)
    }
}

impl<C: Foreseen> Scheduled<C> {
    fn with(
        config: &Config,
        shape: &ShapeArgs,
        costs: &impl Fn(&Timetable) -> Result<C>,
    ) -> Result<Scheduled<C>> {
        let mut request = request(config)?;
        if config.schedule.scaling == Scaling::Auto {
            request.take_shorter_scaling_by(&mut |ordered| {
                let plan = Scheduled::passed(config, ordered, costs);
                endless_if_refused(plan.and_then(|plan| Ok(plan.makespan()?)))
            })?;
        }
        if let Source::Timetable(timetable) = &request.source {
            shape.fit(&config.schedule.name, timetable)?;
        }
        let made = Scheduled::made(config, request, costs);
        made.map_err(|error| by_file_name(error, &config.schedule.name))
    }

    fn made(
        config: &Config,
        request: Request,
        costs: &impl Fn(&Timetable) -> Result<C>,
    ) -> Result<Scheduled<C>> {
        ensure!(
            config.passes.recompute_stages != RecomputedStages::Auto
                || !matches!(request.source, Source::Search(..) | Source::SearchWith(..)),
            UnfitStages::OfSearch
        );
        let bar = ProgressBar::new_spinner();
        bar.set_style(ProgressStyle::with_template("{msg} {elapsed}")?);
        bar.set_message("making the schedule");
        keep_drawing(&bar);
        let ordered = request.timetable(costs, &mut |progress: &Progress| {
            bar.set_message(Report::under_way(*progress).to_string());
        });
        bar.finish_and_clear();
        Scheduled::passed(config, ordered?, costs)
    }

    /// Applies the passes to a timetable, and the recomputation that is chosen by stage.
    fn passed(
        config: &Config,
        mut ordered: Ordered,
        costs: &impl Fn(&Timetable) -> Result<C>,
    ) -> Result<Scheduled<C>> {
        let how = Lowering {
            sync: config.replicas.sync,
            max_peak: config.passes.memory_cap,
            whole_stages: config.replicas.most_whole_stages(),
            ..Lowering::default()
        };
        let (costs, search) = (costs(&ordered.timetable)?, ordered.search.clone());
        let mut config = config.clone();
        let is_open = config.passes.recompute_stages == RecomputedStages::Auto;
        let may_offload = config.passes.offload == Offloading::Auto;
        if is_open {
            config = recomputed_within_cap(&config, &ordered.timetable, &how, &costs)?;
            ordered.passes = config.passes();
        }
        let ordered = recomputed_at(&config, ordered, &costs)?;
        let savings = ordered.passes.savings();
        let timetable = ordered.passed(&how, &costs)?;
        let recomputed = is_open.then(|| match config.passes.recompute {
            Recompute::None => "none".to_string(),
            _ => config.passes.recompute_stages.to_string(),
        });
        let offloads = (is_open && may_offload).then(|| timetable.has(Kind::Offload));
        let named = config.schedule.name;
        Ok(Scheduled { timetable, search, recomputed, offloads, how, savings, named, costs })
    }

    /// Returns the step on the living ranks of `width` groups. `costs` converts the costs of the
    /// whole timetable's stages to those of the new one.
    pub(crate) fn without(
        self,
        dead: &LostArgs,
        width: usize,
        costs: &impl Fn(&Timetable, &Timetable) -> Result<C>,
    ) -> Result<Scheduled<C>> {
        if dead.lost.is_empty() {
            return Ok(self);
        }
        ensure!(
            !self.timetable.has(Kind::Offload),
            "--lost shows the step of the remaining ranks, which moves no activations, since the \
             rank that keeps them may be dead: leave --bpipe and --offload out"
        );
        // Training chooses this order whatever the costs of ops; and the costs of workers cover all
        // workers.
        let order = UniformCosts::new(1.0, 2.0, 0.0).per_units(self.timetable.units_per_micro);
        let timetable = narrow(&self.timetable, width, &dead.ranks(), &order)
            .with_context(|| format!("--lost {}", dead.list()))?;
        Ok(Scheduled { costs: costs(&self.timetable, &timetable)?, timetable, ..self })
    }

    /// Proves the schedule.
    pub(crate) fn prove(&self) -> Result<Program, Refusal> {
        spin("proving the schedule", || self.lowered())
    }

    fn lowered(&self) -> Result<Program, Refusal> {
        let program = lower_at(&self.timetable, &self.how, self.costs.known());
        program.map_err(|refusal| {
            let mut refusal = refusal.asked_for(self.savings);
            name_by_file(&mut refusal, &self.named);
            refusal
        })
    }

    /// Returns the time of a step.
    fn makespan(&self) -> Result<f64, Refusal> {
        Ok(simulate(&self.lowered()?, &self.costs).makespan())
    }

    /// Returns the costs of the stages.
    pub(crate) fn costs(&self) -> &C {
        &self.costs
    }

    /// Simulates the schedule.
    pub(crate) fn simulate(&self, program: &Program) -> Timeline {
        spin("simulating the schedule", || simulate(program, &self.costs))
    }
}

/// Returns the settings of a schedule by name or in a file, when nothing is known of its layers.
fn drawn(name: &str, shape: &ShapeArgs, costs: &CostArgs) -> Result<Config> {
    let config = said(name, shape, costs)?;
    config.check_whole_stages().map_err(Error::msg)?;
    Ok(config)
}

fn said(name: &str, shape: &ShapeArgs, costs: &CostArgs) -> Result<Config> {
    let schedule = match name {
        "-" => Named::File(PathBuf::from(name)),
        name => name.parse()?,
    };
    let mut config = shape.0.over(&costs.memory.0).drawn()?;
    config.schedule.name = schedule;
    Ok(config)
}
