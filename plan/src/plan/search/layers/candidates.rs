//! The configurations for a model of given layers, and the choice of the fastest that fits.

use anyhow::{Error, Result, ensure};
use chimera_core::analyze::{Network, NetworkCosts, peak_bytes, peak_working_bytes, simulate};
use chimera_core::costs::{Costs, UnevenCosts};
use chimera_core::ids::{BucketId, WorkerId};
use chimera_core::lower::{Moves, Recompute};
use chimera_core::program::Program;
use chimera_core::update::Update;
use chimera_device::start_threads;
use chimera_settings::{Config, Layout, OPTIONS, Origin, ScheduleSettings};
use rayon::prelude::*;

use super::{LayerCost, LayerCosts, costs_of};
use crate::plan::search::candidate::{Candidate, Fit, no_flush};
use crate::plan::search::choose::{Choice, check_schedule};
use crate::plan::search::effort::{Effort, Watched};
use crate::plan::search::estimate::MOST_SIMULATED;
use crate::plan::search::no_way::why_none;
use crate::plan::search::searched::is_searched;
use crate::plan::search::ways::ways;
use crate::plan::{Course, Need};

/// Ranks with equal memory and links; their speeds may differ.
pub struct Ranks {
    /// Number of ranks.
    pub n_ranks: usize,
    /// Bytes of memory of each rank.
    pub memory: f64,
    /// Nodes and links. Its width is not read: every configuration has its own.
    pub network: Network,
}

/// Tries every configuration for steps of `batch` samples of a model on `ranks`, as
/// [`choose`](crate::plan::choose()) does for the models here: widths and depths, schedules,
/// recomputation. Each step is simulated as a whole, with the micro-batch size of the layers' times.
///
/// # Errors
/// If `said` sets options of another model, or there is no such configuration, whatever the memory.
pub fn choose_for(
    model: &LayerCosts,
    said: &Config,
    batch: usize,
    ranks: &Ranks,
    top: usize,
    effort: &Effort<'_>,
) -> Result<Choice> {
    check(model, said)?;
    let effort = effort.of(said);
    let watched = Watched::begin(&effort);
    let size = model.micro_batch_size;
    let mut known = said.clone();
    known.model.layers = model.n_layers();
    let is_known = |way: &Config| {
        way.schedule.micro_batch_size == size && way.passes.recompute != Recompute::Selective
    };
    let groups = ways(&known, batch, ranks.n_ranks).into_iter();
    let groups = groups.map(|group| group.into_iter().filter(is_known).collect::<Vec<_>>());
    let groups: Vec<Vec<Config>> = groups.filter(|group| !group.is_empty()).collect();
    ensure!(
        !groups.is_empty(),
        "{} rank(s), a batch of {batch} and micro-batches of {size} leave no way to train a model of {} layers: {}",
        ranks.n_ranks,
        model.n_layers(),
        why_none(&known, ranks.n_ranks, batch, known.model.layers, Some(size))
    );
    start_threads()?;
    let n_groups = groups.len();
    let outcomes: Vec<Result<Fit>> = groups
        .into_par_iter()
        .flat_map_iter(|group| {
            let outcomes = tried(model, group, ranks, &watched);
            watched.tell(n_groups);
            outcomes
        })
        .collect();
    let mut choice = Choice::of(outcomes)?;
    if is_searched(said) {
        choice.search_orders(said, top, effort.time_limit, |way| {
            match outcome(model, way, ranks) {
                Ok(Fit::Fits(candidate)) => Some(candidate),
                _ => None,
            }
        });
    }
    choice.n_left_out = watched.n_left_out();
    ensure!(
        !choice.is_empty(),
        "no configuration was tried in time: choose a larger --search-time"
    );
    Ok(choice)
}

/// Refuses options that apply to the models here, or that the layers determine.
fn check(model: &LayerCosts, said: &Config) -> Result<()> {
    check_schedule(said)?;
    let is_said = |key: &str| {
        let origin = said.value(key).map(|(_, origin)| origin.clone());
        matches!(origin, Some(Origin::CommandLine | Origin::File(..)))
    };
    let of_a_model = OPTIONS.iter().filter(|option| ["Model", "Data"].contains(&option.heading));
    let of_others = ["profile", "shard-optimizer", "layout", "reduce-precision"];
    let mut others = of_a_model.map(|option| option.name).chain(of_others).chain(Layout::SPLIT);
    if let Some(other) = others.find(|key| is_said(key)) {
        anyhow::bail!(
            "{other} is for the models here, and --costs names another: leave {other} out"
        )
    }
    ensure!(
        said.passes.recompute != Recompute::Selective,
        "recompute selective is for the models here, since the file does not say which activations \
         would be kept: choose none or full"
    );
    said.check_whole_stages().map_err(Error::msg)?;
    let size = model.micro_batch_size;
    ensure!(
        !is_said("micro-batch-size") || said.schedule.micro_batch_size == size,
        "micro-batch-size is {}, but the times in the file are of {size}: leave it out",
        said.schedule.micro_batch_size
    );
    Ok(())
}

/// Tries configurations that differ only in recomputation: with enough memory, nothing is recomputed.
fn tried(
    model: &LayerCosts,
    group: Vec<Config>,
    ranks: &Ranks,
    watched: &Watched<'_>,
) -> Vec<Result<Fit>> {
    let mut outcomes = Vec::new();
    for way in group {
        if watched.is_over() {
            watched.leave_out();
            continue;
        }
        let outcome = outcome(model, way, ranks);
        let fits = matches!(outcome, Ok(Fit::Fits(_)));
        outcomes.push(outcome);
        if fits {
            break;
        }
    }
    outcomes
}

/// Proves a configuration, and simulates it if its memory fits.
fn outcome(model: &LayerCosts, way: Config, ranks: &Ranks) -> Result<Fit> {
    let ScheduleSettings { depth, width, micro_batches: n, .. } = way.schedule;
    ensure!(
        n * depth <= MOST_SIMULATED,
        "{n} micro-batches of depth {depth} are too many to simulate: choose at most {}",
        MOST_SIMULATED / depth
    );
    let network = Network { width, ..ranks.network };
    ensure!(
        network.fits(depth),
        "groups of {depth} workers would be placed differently on nodes of {} ranks: choose a \
         divisor or a multiple of {depth}",
        network.ranks_per_node
    );
    let course = Course::plan(way, None, model)?;
    let program = &course.program;
    ensure!(program.window().update() == Update::Flush, no_flush(&course.config.schedule.name));
    ensure!(
        program.rules().n_slices() == 1,
        "schedule {} cuts sequences into slices, and the file does not say that its layers can be cut so: choose another",
        course.config.schedule.name
    );
    let stages = model.stages(course.n_stages())?;
    let need = need(model, &stages, &course, width);
    if need.total() > ranks.memory {
        return Ok(Fit::TooLarge(course.config, need));
    }
    let units = program.units_per_micro();
    let messages: Vec<f64> = stages.iter().map(|stage| stage.message_bytes).collect();
    let saved: Vec<f64> = match course.config.passes().moves {
        Moves::Bpipe => stages.iter().map(|stage| stage.activation_bytes).collect(),
        Moves::None | Moves::Offload => Vec::new(),
    };
    let gradients: Vec<Vec<f64>> = stages.iter().map(|stage| vec![stage.weight_bytes]).collect();
    let compute = UnevenCosts::new(costs_of(&stages, units), course.config.worker_speeds());
    let costs = NetworkCosts::of_messages(compute, network, program.placement(), units, &messages)
        .with_saved(&saved)
        .with_sums(program, &gradients, &[]);
    let timeline = simulate(program, &costs);
    let step_s = timeline.makespan() + costs.agree();
    let bubble_ratio = timeline.bubble_ratio();
    Ok(Fit::Fits(Candidate {
        config: course.config,
        need,
        step_s,
        bubble_ratio,
        is_simulated: true,
    }))
}

/// Returns the memory of the worker that needs most.
fn need(model: &LayerCosts, stages: &[LayerCost], course: &Course, width: usize) -> Need {
    let program = &course.program;
    let (bytes, samples) = (model.stage_bytes(stages), course.samples_per_unit());
    let kept = peak_bytes(program, &bytes, samples);
    let used = peak_working_bytes(program, &bytes, samples);
    let sums = reduced(stages, program, width);
    let need = |(worker, (activations, used)): (usize, (&f64, &f64))| {
        let held = program.placement().stages_of(WorkerId(worker as u16));
        let weights = held.iter().map(|stage| stages[stage.index()].weight_bytes).sum::<f64>();
        let working = (used.max(sums[worker]) - activations).max(0.0);
        let state = weights * model.state_per_weight;
        Need { state, copy: 0.0, activations: *activations, working }
    };
    let needs = kept.iter().zip(&used).enumerate().map(need);
    needs.max_by(|a, b| a.total().total_cmp(&b.total())).unwrap_or_default()
}

/// Returns for each worker the bytes of gradients in flight between replicas, when saved activations are freed.
fn reduced(stages: &[LayerCost], program: &Program, width: usize) -> Vec<f64> {
    let mut reduced = vec![0.0; program.rows().len()];
    for (number, bucket) in (0..).map(BucketId).zip(program.buckets_of_update()) {
        if program.replicas(width, number).len() > 1 {
            let bytes =
                bucket.stages.iter().map(|stage| stages[stage.index()].weight_bytes).sum::<f64>();
            bucket.members.iter().for_each(|worker| reduced[worker.index()] += bytes);
        }
    }
    reduced
}
