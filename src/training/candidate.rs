//! What one way to train takes: the memory of a rank and the time of a step, before anything runs.

use anyhow::{Result, ensure};
use chimera_core::analyze::{Costs, Network, NetworkCosts, StageCosts, UniformCosts, simulate};
use chimera_core::ids::{PipeId, StageId};
use chimera_core::lower::Recompute;
use chimera_core::schedule::Scaling;
use chimera_core::stage::Param;
use chimera_core::update::Update;

use super::fit::{self, Need};
use super::plan::{Plan, costs_by_flops};
use crate::device::Device;
use crate::settings::{Config, Settings};

/// Of an element of a gradient, whatever activations are made of.
const GRADIENT_BYTES: f64 = 4.0;

/// The ranks there are, all alike.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cluster {
    /// Ranks, W x D.
    pub n_ranks: usize,
    /// Bytes of the memory of each.
    pub memory: f64,
    /// Floating-point operations per second of each.
    pub flops: f64,
    /// Nodes and links. Its width is not read: every candidate has its own.
    pub network: Network,
}

/// A way to train.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// All settings.
    pub config: Config,
    /// Of the rank that needs most.
    pub need: Need,
    /// What a step takes, without the optimizer's update.
    pub step_s: f64,
    /// Idle time of the pipeline.
    pub bubble_ratio: f64,
}

impl Candidate {
    /// Tokens trained on per second.
    pub fn tokens_per_s(&self) -> f64 {
        let Config { width, micro_batches, micro_batch_size, context, .. } = self.config;
        [width, micro_batches, micro_batch_size, context].map(|n| n as f64).iter().product::<f64>()
            / self.step_s
    }

    /// What is to be said for it on top of what was `said`.
    pub fn settings(&self, said: &Settings) -> Settings {
        let (config, said) = (&self.config, said.clone());
        let count = |n: usize| i64::try_from(n).ok();
        let is_scaled = config.scaling != Scaling::Direct;
        let is_recomputed = config.recompute != Recompute::None;
        Settings {
            width: count(config.width),
            depth: count(config.depth),
            schedule: Some(config.schedule.clone()),
            micro_batches: count(config.micro_batches),
            micro_batch_size: count(config.micro_batch_size),
            scaling: is_scaled.then(|| self.scaling().to_string()).or(said.scaling),
            recompute: is_recomputed.then(|| self.recompute().to_string()).or(said.recompute),
            shard_optimizer: config.shard_optimizer.then_some(true).or(said.shard_optimizer),
            ..said
        }
    }

    /// How its schedule scales, by name.
    pub fn scaling(&self) -> &'static str {
        name(&Scaling::ALL, self.config.scaling)
    }

    /// What its forwards keep, by name.
    pub fn recompute(&self) -> &'static str {
        name(&Recompute::ALL, self.config.recompute)
    }
}

fn name<T: Copy + PartialEq>(all: &[(&'static str, T)], value: T) -> &'static str {
    all.iter().find(|(_, one)| *one == value).map_or("", |(name, _)| name)
}

/// What became of a way to train.
pub(super) enum Outcome {
    Fits(Candidate),
    /// What its hungriest rank needs at least.
    TooLarge(Config, Need),
}

/// Proves it, foresees its memory, and simulates it if that is there. The optimizer is shared out only where it has to
/// be, unless `config` says so or `is_sharing_free` does not: owners of tensors take their time, which is not simulated.
pub(super) fn outcome(config: Config, is_sharing_free: bool, cluster: &Cluster) -> Result<Outcome> {
    let mut plan = Plan::elsewhere(config)?;
    let Config { width, depth, .. } = plan.config;
    let network = Network { width, ..cluster.network };
    let is_synchronous = plan.program.window().update() == Update::Flush;
    ensure!(is_synchronous, no_flush(&plan.config.schedule));
    ensure!(
        network.fits(depth),
        "groups of {depth} workers would lie on nodes of {} ranks in different ways: choose a divisor or a multiple of \
         {depth}",
        network.ranks_per_node
    );
    let mut need = hungriest(&plan);
    if need.total() > cluster.memory && is_sharing_free && !plan.config.shard_optimizer {
        let Plan { config, model, cuts, memory, program, .. } = &mut plan;
        config.shard_optimizer = true;
        plan.needs = fit::needs(config, model, cuts, memory, program);
        need = hungriest(&plan);
    }
    if need.total() > cluster.memory {
        return Ok(Outcome::TooLarge(plan.config, need));
    }
    let (step_s, bubble_ratio) = simulated(&plan, network, cluster.flops);
    Ok(Outcome::Fits(Candidate { config: plan.config, need, step_s, bubble_ratio }))
}

/// Why an asynchronous schedule is none to choose from.
pub(super) fn no_flush(schedule: &str) -> String {
    format!(
        "schedule {schedule} has no flush, and so no step that takes a time of its own: choose a synchronous schedule"
    )
}

/// What the rank needs that needs most. Checkpoints are written from the host's memory, which is no GPU's.
fn hungriest(plan: &Plan) -> Need {
    let on_device = |(need, device): (&Need, &Device)| match device {
        Device::Cpu => *need,
        _ => Need { copy: 0.0, ..*need },
    };
    let needs = plan.needs.iter().zip(&plan.devices).map(on_device);
    needs.max_by(|a, b| a.total().total_cmp(&b.total())).unwrap_or_default()
}

/// The time of a step, and the bubble ratio.
fn simulated(plan: &Plan, network: Network, flops: f64) -> (f64, f64) {
    let Plan { config, model, cuts, memory, program, .. } = plan;
    let is_selective = |stage: StageId| {
        let mut pipes = (0..program.placement().n_pipes() as u16).map(PipeId);
        pipes.any(|pipe| program.rules().is_selective(pipe, stage))
    };
    let size = config.micro_batch_size as f64;
    let units = program.units_per_micro();
    let stages = costs_by_flops(model, config.context, cuts, flops / size, is_selective);
    let compute = stages.into_iter().map(|stage: UniformCosts| stage.per_units(units)).collect();
    let activations: Vec<f64> = memory.iter().map(|stage| stage.sample.output * size).collect();
    let params: Vec<Vec<Param>> = cuts.iter().map(|cut| model.params(cut)).collect();
    let gradients = |params: &Vec<Param>, tied: bool| -> Vec<f64> {
        let tensors = params.iter().filter(|param| param.tied == tied);
        tensors.map(|param| param.n_elements() as f64 * GRADIENT_BYTES).collect()
    };
    let own: Vec<Vec<f64>> = params.iter().map(|params| gradients(params, false)).collect();
    let tied = params.first().map_or(Vec::new(), |first| gradients(first, true));
    let (compute, placement) = (StageCosts::new(compute), program.placement());
    let costs = NetworkCosts::of_messages(compute, network, placement, units, &activations)
        .with_sums(program, &own, &tied);
    let timeline = simulate(program, &costs);
    (timeline.makespan() + costs.agree(), timeline.bubble_ratio())
}
