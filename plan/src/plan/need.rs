//! The memory that each worker of a run needs.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Add;

use chimera_core::engine::{owned_elements, shard_elements};
use chimera_core::ids::{BucketId, StageId, WorkerId};
use chimera_core::model::{Cut, Memory, ModelConfig, memory};
use chimera_core::notation::size;
use chimera_core::program::Program;
use chimera_core::stage::Param;
use chimera_device::Device;
use chimera_settings::Config;

use super::peaks::{Peaks, Weights};
use super::step::training::training;

/// Bytes that a run or a part of its workers needs.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Need {
    /// All versions of the weights, gradients and optimizer state. With bf16 also the weights as operands of
    /// products, at two bytes an element. Also the tensors of stages themselves, such as rotary positions.
    pub state: f64,
    /// A copy of weights and optimizer state: a checkpoint is written from it while training goes
    /// on, and with `shadow-every` ranks keep it for themselves and their neighbours.
    pub copy: f64,
    /// Peak of what workers keep for backwards: saved activations, inputs to recompute from, deferred weight work.
    pub activations: f64,
    /// Further bytes while the op that needs most runs: outputs of its layers, including gradients,
    /// and logits until their backward.
    pub working: f64,
}

impl Need {
    /// Returns the memory of a part of all workers.
    pub fn times(self, part: f64) -> Need {
        let Need { state, copy, activations, working } = self;
        Need {
            state: state * part,
            copy: copy * part,
            activations: activations * part,
            working: working * part,
        }
    }

    /// Returns the larger of both.
    pub(super) fn larger(self, other: Need) -> Need {
        if other.total() > self.total() { other } else { self }
    }

    /// Returns the sum of all parts.
    pub fn total(&self) -> f64 {
        self.state + self.copy + self.activations + self.working
    }
}

impl Add for Need {
    type Output = Need;

    fn add(self, other: Need) -> Need {
        Need {
            state: self.state + other.state,
            copy: self.copy + other.copy,
            activations: self.activations + other.activations,
            working: self.working + other.working,
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for weights, gradients and moments", size(self.state))?;
        if self.copy > 0.0 {
            write!(f, ", {} for the copy that checkpoints are written from", size(self.copy))?;
        }
        write!(
            f,
            ", {} for saved activations and {} for logits and gradients of the running op",
            size(self.activations),
            size(self.working)
        )
    }
}

/// Returns the memory that each worker of a group needs.
pub fn needs(
    config: &Config,
    weights: &Weights,
    memory: &[Memory],
    program: &Program,
) -> Vec<Need> {
    needs_at(config, weights, memory, program, &Peaks::of(config, (weights, memory), program))
}

/// Returns the memory of workers with these peaks. Memory that the run needs once is divided among
/// them. The program only says who holds what.
pub(super) fn needs_at(
    config: &Config,
    weights: &Weights,
    memory: &[Memory],
    program: &Program,
    peaks: &Peaks,
) -> Vec<Need> {
    let Weights { params, element } = weights;
    let shards = program
        .shards_weights()
        .then(|| shard_elements(program, config.schedule.width, params, None));
    let shards = shards.and_then(|elements| elements.weights);
    let n_workers = program.rows().len();
    let optimizer = &config.training.optimizer;
    let mut owned = vec![0.0; n_workers];
    if config.replicas.shard_optimizer {
        let elements = owned_elements(program, config.schedule.width, params, optimizer);
        for (rank, elements) in elements.into_iter().enumerate() {
            owned[rank % n_workers] += elements as f64 * element / config.schedule.width as f64;
        }
    }
    // From stage 2 on, gradients and their sums are part of the peaks.
    let by_need = config.replicas.zero > 1;
    let sums = sums(config, program, weights);
    let width = config.schedule.width as f64;
    let copy = if config.checkpoints.save_every > 0 { saved_bytes(config, weights) } else { 0.0 };
    let share = 1.0 / (n_workers as f64 * width);
    let shadows =
        (config.devices.shadow_every > 0).then(|| shadows(config, program, weights, &owned));
    // A window that may be trained again keeps what its updates overwrite.
    let is_validated = training(config).validates_windows();
    let overwritten = if is_validated && program.bordered().is_some() { 2.0 } else { 1.0 };
    let need = |(w, (activations, used)): (usize, (f64, f64))| {
        let worker = WorkerId(w as u16);
        let versions = f64::from(program.weight_versions()[w]);
        let stages = program.placement().stages_of(worker);
        let held = |s: &StageId| {
            let held = |param: &Param| {
                let (weights, kept) = (param.held_bytes(*element), n_kept(config, param) as f64);
                let n_copies = if param.packing.is_some() { 1.0 } else { overwritten * versions };
                let gradient = if param.frozen || by_need { 0.0 } else { weights };
                let n_copies = if shards.is_some() && !param.frozen { 0.0 } else { n_copies };
                gradient + n_copies * weights + overwritten * kept * element
            };
            params[s.index()].iter().map(held).sum::<f64>()
        };
        let beside = |s: &StageId| {
            let Memory { operands, own, .. } = memory[s.index()];
            operands * versions + own
        };
        let state = stages.iter().map(|s| held(s) + beside(s)).sum::<f64>();
        let working = if by_need { used } else { used.max(sums[w]) } - activations;
        let copy = copy * share + shadows.as_ref().map_or(0.0, |shadows| shadows[w]);
        let shard: f64 = shards.as_ref().map_or(0.0, |shards| shards.kept[w].iter().sum());
        Need { state: state + owned[w] + shard * element, copy, activations, working }
    };
    let Peaks { kept, used } = peaks;
    kept.iter().copied().zip(used.iter().copied()).enumerate().map(need).collect()
}

/// Returns the number of optimizer elements that every replica keeps of a parameter: none if the optimizer is sharded.
fn n_kept(config: &Config, param: &Param) -> usize {
    if config.replicas.shard_optimizer {
        0
    } else {
        config.training.optimizer.n_state_elements(param)
    }
}

/// Returns for each worker the bytes of its own weights and optimizer state, and of those of the
/// rank before it. Each counts twice while the next copy is on its way.
fn shadows(config: &Config, program: &Program, weights: &Weights, owned: &[f64]) -> Vec<f64> {
    let Weights { params, element } = weights;
    let of_stage = |stage: &StageId| {
        let kept = |param: &Param| n_kept(config, param) as f64 * element;
        let held = |param: &Param| param.held_bytes(*element) + kept(param);
        params[stage.index()].iter().map(held).sum::<f64>()
    };
    let held = |w: usize| {
        let stages = program.placement().stages_of(WorkerId(w as u16));
        stages.iter().map(of_stage).sum::<f64>() + owned[w]
    };
    let n = owned.len();
    (0..n).map(|w| 2.0 * (held(w) + held((w + n - 1) % n))).collect()
}

/// Returns the bytes of a checkpoint: each tensor once, with its optimizer state.
fn saved_bytes(config: &Config, Weights { params, element }: &Weights) -> f64 {
    let by_name: BTreeMap<_, _> =
        params.iter().flatten().map(|param| (&param.name, param)).collect();
    let kept = |param: &Param| config.training.optimizer.n_state_elements(param) as f64 * element;
    by_name.values().map(|param| param.held_bytes(*element) + kept(param)).sum()
}

/// Returns for each worker the bytes of gradient reductions besides the gradients, when saved activations are freed.
fn sums(config: &Config, program: &Program, weights: &Weights) -> Vec<f64> {
    let Weights { params, element } = weights;
    let mut sums = vec![0.0; program.rows().len()];
    for (number, bucket) in (0..).map(BucketId).zip(program.buckets_of_update()) {
        let n_replicas = program.replicas(config.schedule.width, number).len();
        let Some(stage) = bucket.stages.first().filter(|_| n_replicas > 1) else { continue };
        let is_its = |param: &&Param| param.tied == (bucket.stages.len() > 1) && !param.frozen;
        let tensors = params[stage.index()].iter().filter(is_its);
        let bytes = tensors.map(|param| param.n_elements() as f64 * element).sum::<f64>();
        // If the optimizer is sharded, so are the reductions.
        let part = if config.replicas.shard_optimizer { bytes / n_replicas as f64 } else { bytes };
        bucket.members.iter().for_each(|worker| sums[worker.index()] += part);
    }
    sums
}

/// Returns the memory of every stage. Precision and devices determine the size of activations; with
/// several devices the larger size counts.
pub(super) fn memory_of(config: &Config, model: &ModelConfig, cuts: &[Cut]) -> Vec<Memory> {
    let devices = Device::named(&config.devices.device, config.schedule.depth);
    let on_host = devices.is_ok_and(|all| all.into_iter().any(Device::is_host));
    let (drops, bytes) =
        (config.model.dropout > 0.0, config.devices.precision.activation_bytes(on_host));
    let of = |cut| memory(model, cut, config.model.sequence, drops, bytes);
    // The length of samples is checked: it fits into the model's context.
    cuts.iter().map(|cut| of(cut).unwrap_or_default()).collect()
}
