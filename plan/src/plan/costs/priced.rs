//! Costs of stages and steps from a measured profile.

use std::path::Path;

use anyhow::{Context, Result};
use chimera_core::analyze::{Timeline, simulate};
use chimera_core::costs::{Costs, SliceGrowth, StageCosts, UnevenCosts, UniformCosts};
use chimera_core::effects::Token;
use chimera_core::ids::{BucketId, StageId, WorkerId};
use chimera_core::lower::Moves;
use chimera_core::model::{Cut, ModelConfig};
use chimera_core::op::Op;
use chimera_core::program::Program;
use chimera_core::stage::Param;
use chimera_core::timetable::Timetable;
use chimera_device::{AnyKernels, Device};
use chimera_settings::{Config, ModelSettings};

use crate::plan::need::memory_of;
use crate::plan::step::chain::{Chain, costs_by_flops, is_selective};
use crate::plan::step::units::Units;
use crate::profile::{ExchangeTime, OpTime, Profile, ProfiledTimes, StageTimes};

/// A model whose stages cost the measured time, or without a profile their share of the model's work.
#[derive(Clone, Debug)]
pub struct Priced {
    model: ModelConfig,
    times: Option<ProfiledTimes>,
}

impl Priced {
    /// Returns the costs of a model's stages, in seconds by these times, or else in operations.
    pub fn new(model: &ModelConfig, times: Option<ProfiledTimes>) -> Priced {
        Priced { model: model.clone(), times }
    }

    /// Reads the profile that the settings name, if they do.
    pub(crate) fn by_settings<K: AnyKernels>(
        config: &Config,
        model: &ModelConfig,
    ) -> Result<Priced> {
        let times = |path: &Path| {
            times_of::<K>(config, path, config.schedule.width * config.schedule.depth)
        };
        Ok(Priced::new(model, config.costs.profile.as_deref().map(times).transpose()?))
    }

    pub(crate) fn model(&self) -> &ModelConfig {
        &self.model
    }

    /// Returns the costs of stages if a micro-batch is cut into these units: seconds, or without a
    /// profile the floating-point operations of a sample.
    pub(crate) fn stages(
        &self,
        config: &Config,
        cuts: &[Cut],
        units: Units,
        is_selective: impl Fn(StageId) -> bool,
    ) -> Result<Vec<UniformCosts>> {
        let model = &self.model;
        match &self.times {
            Some(times) => Stages { config, model, cuts }.costs(times, units, is_selective),
            None => {
                Ok(costs_by_flops(model, config.model.sequence, cuts, (1.0, units), is_selective))
            }
        }
    }

    /// Returns costs of a program's compute, and with a profile the costs of the rest of a step by these settings.
    ///
    /// # Errors
    /// If the profile lacks a layer of the model, or the layers cannot be cut this way.
    pub fn with_step<C: Costs>(
        &self,
        config: &Config,
        compute: C,
        program: &Program,
    ) -> Result<StepCosts<C>> {
        let Some(times) = &self.times else { return Ok(StepCosts::free(compute)) };
        let cuts = config.cuts(&self.model, program.placement().n_stages())?;
        Stages { config, model: &self.model, cuts: &cuts }.with_step(compute, times, program)
    }

    /// Returns the time of a program's step with these stages, in the unit of [`stages`](Self::stages).
    pub(crate) fn makespan(&self, config: &Config, cuts: &[Cut], program: &Program) -> Result<f64> {
        Ok(self.timeline(config, cuts, program, config.worker_speeds())?.makespan())
    }

    /// Returns a program's simulated step with these stages, on workers of these speeds.
    pub(crate) fn timeline(
        &self,
        config: &Config,
        cuts: &[Cut],
        program: &Program,
        speeds: Vec<f64>,
    ) -> Result<Timeline> {
        let Some(times) = &self.times else {
            let is_selective = |stage| program.rules().is_selective_somewhere(stage);
            let units = Units::of(program);
            let costs = StageCosts::new(self.stages(config, cuts, units, is_selective)?);
            return Ok(simulate(program, &UnevenCosts::new(costs, speeds)));
        };
        let stages = Stages { config, model: &self.model, cuts };
        let costs = stages.step_costs(times, program)?;
        Ok(simulate(program, &UnevenCosts::new(costs, speeds)))
    }
}

/// Returns the times of the profile in a file, for `workers` side by side on this machine.
///
/// # Errors
/// If it cannot be read, or was measured on something else or on a busy machine, unless the settings allow that.
pub fn times_of<K: AnyKernels>(
    config: &Config,
    path: &Path,
    workers: usize,
) -> Result<ProfiledTimes> {
    let profile = Profile::read(path)?;
    let devices = Device::list::<K>(&config.devices.device, config.schedule.depth)?;
    let doubt = match profile.check(&devices[0].model_name::<K>()?, config.devices.precision) {
        Err(error) if config.costs.any_profile => Some(error.to_string()),
        Err(error) => {
            let remedy = "measure with `chimera profile`, or give --any-profile";
            return Err(error.context(format!("{}: {remedy}", path.display())));
        }
        Ok(()) => None,
    };
    let busy = match profile.check_idle(config.devices.threads) {
        Err(error) if config.costs.any_profile => Some(error.to_string()),
        Err(error) => {
            let remedy = "measure again with `chimera profile` while the machine does nothing \
                          else, or give --any-profile";
            return Err(error.context(format!("{}: {remedy}", path.display())));
        }
        Ok(doubt) => doubt,
    };
    let times =
        ProfiledTimes::of(&profile, workers, config.devices.threads, config.devices.precision);
    let times = times.with_context(|| path.display().to_string())?.of_file(path);
    let optimizer = &config.training.optimizer;
    let unmeasured = (!times.has_update(optimizer)).then(|| {
        let name = optimizer.name();
        format!("updates are assumed to take as long as AdamW's: no profile has {name}'s")
    });
    Ok(times.doubted(doubt).doubted(busy).doubted(unmeasured))
}

impl Chain for Priced {
    fn costs(&self, config: &Config, timetable: &Timetable) -> Result<StageCosts> {
        if self.times.is_none() {
            return self.model.costs(config, timetable);
        }
        let cuts = config.cuts(&self.model, timetable.placement.n_stages())?;
        let is_selective = is_selective(config, timetable);
        let costs = self.stages(config, &cuts, Units::of_timetable(timetable), is_selective)?;
        Ok(StageCosts::new(costs))
    }

    fn tied(&self, n_stages: usize) -> Vec<Vec<StageId>> {
        self.model.tied(n_stages)
    }

    fn frozen(&self, config: &Config, n_stages: usize) -> Result<Vec<StageId>> {
        self.model.frozen(config, n_stages)
    }

    fn params(&self, config: &Config, n_stages: usize) -> Result<Vec<Vec<Param>>> {
        Chain::params(&self.model, config, n_stages)
    }
}

/// Returns for each stage the bytes that it saves of a micro-batch for its backward.
pub(crate) fn saved_bytes(config: &Config, model: &ModelConfig, cuts: &[Cut]) -> Vec<f64> {
    let samples = config.schedule.micro_batch_size as f64;
    memory_of(config, model, cuts).iter().map(|stage| stage.sample.saved * samples).collect()
}

/// A model cut into stages.
#[derive(Clone, Copy)]
pub(crate) struct Stages<'s> {
    pub(crate) config: &'s Config,
    pub(crate) model: &'s ModelConfig,
    pub(crate) cuts: &'s [Cut],
}

impl Stages<'_> {
    /// Returns the costs of the stages in seconds, if a micro-batch is cut into these units.
    fn costs(
        &self,
        times: &ProfiledTimes,
        units: Units,
        is_selective: impl Fn(StageId) -> bool,
    ) -> Result<Vec<UniformCosts>> {
        let ModelSettings { sequence, dropout, .. } = self.config.model;
        let micro_batch_size = self.config.schedule.micro_batch_size;
        let (samples, n_timed) = units.timed(micro_batch_size);
        let slices = units.n_slices() as usize;
        let message = times.message(self.message_bytes(units)).takes;
        let transfers = self.transfers(times);
        let stage = |(stage, cut): (u16, &Cut)| -> Result<UniformCosts> {
            let StageTimes { forward, input, weight, recompute, restore } =
                times.stage(self.model, cut, (sequence, samples, slices), dropout)?;
            let recompute = if is_selective(StageId(stage)) { restore } else { recompute };
            let micro = |time: OpTime| time.seconds * n_timed;
            let growth = SliceGrowth {
                forward: forward.growth,
                input: input.growth,
                weight: weight.growth,
                recompute: recompute.growth,
            };
            let (transfer, transfer_occupies) =
                transfers.get(usize::from(stage)).copied().unwrap_or_default();
            let costs = UniformCosts {
                input: micro(input),
                weight: micro(weight) * self.model.trained_part(cut),
                recompute: micro(recompute),
                transfer,
                transfer_occupies,
                growth,
                ..UniformCosts::new(micro(forward), 0.0, message)
            };
            Ok(units.cut(costs))
        };
        (0..).zip(self.cuts).map(stage).collect()
    }

    /// Returns for each stage the time to move the saved activations of a micro-batch, and the part of it in which
    /// no compute runs. Activations go between threads as messages; the worker itself moves them to the host.
    fn transfers(&self, times: &ProfiledTimes) -> Vec<(f64, f64)> {
        let moves = self.config.passes().moves;
        if moves == Moves::None {
            return Vec::new();
        }
        let takes = |bytes: f64| match moves {
            Moves::Bpipe => (times.message(bytes as usize).takes, 0.0),
            _ => {
                let takes = times.transfer(bytes as usize).unwrap_or(0.0);
                (takes, takes)
            }
        };
        saved_bytes(self.config, self.model, self.cuts).into_iter().map(takes).collect()
    }

    /// Returns the bytes of a unit's message from a stage on the host to the next.
    fn message_bytes(&self, units: Units) -> usize {
        let (samples, n_timed) = units.timed(self.config.schedule.micro_batch_size);
        let of_samples =
            samples * self.config.model.sequence * self.model.hidden * size_of::<f32>();
        (of_samples as f64 * n_timed) as usize / units.n() as usize
    }

    /// Returns the costs of a program's whole step.
    pub(crate) fn step_costs(&self, times: &ProfiledTimes, program: &Program) -> Result<StepCosts> {
        let is_selective = |stage| program.rules().is_selective_somewhere(stage);
        let stages = self.costs(times, Units::of(program), is_selective)?;
        self.with_step(StageCosts::new(stages), times, program)
    }

    /// Returns costs of compute, and of the rest of a step.
    pub(crate) fn with_step<C: Costs>(
        &self,
        compute: C,
        times: &ProfiledTimes,
        program: &Program,
    ) -> Result<StepCosts<C>> {
        let width = self.config.schedule.width;
        let optimizer = &self.config.training.optimizer;
        let shard_optimizer = self.config.replicas.shard_optimizer;
        let params: Vec<Vec<Param>> = self.cuts.iter().map(|cut| self.model.params(cut)).collect();
        let n_workers = program.placement().n_workers();
        let (mut updates, mut reductions) = (Vec::new(), Vec::new());
        let (mut normed, mut cleared) = (vec![0; n_workers], vec![0; n_workers]);
        for (number, bucket) in (0..).map(BucketId).zip(program.buckets_of_update()) {
            let is_tied = bucket.stages.len() > 1;
            let tensors = bucket.stages.first().map_or(&[][..], |stage| &params[stage.index()]);
            let is_its = |param: &&Param| param.tied == is_tied && !param.frozen;
            let its: Vec<&Param> = tensors.iter().filter(is_its).collect();
            let n: usize = its.iter().map(|param| param.n_elements()).sum();
            let n_replicas = program.replicas(width, number).len().max(1);
            let share = if shard_optimizer { n_replicas } else { 1 };
            updates.push(times.update(optimizer, &its, share)?);
            reductions.push(match (n_replicas, times.reduction(n_replicas, n)) {
                (1, _) => ExchangeTime::default(),
                (_, Some(measured)) => measured,
                // Gradients are copied into one buffer, parts of others are added, and sums are copied out of it.
                (_, None) => {
                    let join = times.layer("join", n)?;
                    let added = times.layer("accumulate", n - n / n_replicas)?;
                    ExchangeTime { takes: 2.0 * join + added, occupies: join }
                }
            });
            for worker in &bucket.members {
                normed[worker.index()] += n / n_replicas;
                cleared[worker.index()] += n;
            }
        }
        let ends = normed.iter().zip(&cleared).map(|(normed, cleared)| {
            Ok(times.layer("squared_norms", *normed)? + times.layer("zeros", *cleared)?)
        });
        let agree = ends.collect::<Result<Vec<f64>>>()?.into_iter().fold(0.0, f64::max);
        let message = times.message(self.message_bytes(Units::of(program))).occupies;
        let agree = agree + times.sync();
        Ok(StepCosts { compute, message, updates, reductions, agree })
    }
}

/// Costs of compute and of messages between threads, and of reductions, updates and the step sync.
#[derive(Clone, Debug)]
pub struct StepCosts<C = StageCosts> {
    compute: C,
    /// Time for which a message occupies its sender.
    message: f64,
    /// Update times by bucket.
    updates: Vec<f64>,
    reductions: Vec<ExchangeTime>,
    /// Time of gradient norms, of zeroing the next gradients, and of the step sync.
    agree: f64,
}

impl<C> StepCosts<C> {
    /// Returns costs of compute only.
    pub fn free(compute: C) -> StepCosts<C> {
        StepCosts { compute, message: 0.0, updates: Vec::new(), reductions: Vec::new(), agree: 0.0 }
    }

    /// Returns costs of compute and of updates by bucket.
    pub(crate) fn with_updates(compute: C, updates: Vec<f64>) -> StepCosts<C> {
        StepCosts { updates, ..StepCosts::free(compute) }
    }

    fn reduction(&self, bucket: BucketId) -> ExchangeTime {
        match self.reductions.len() {
            0 => ExchangeTime::default(),
            n => self.reductions[bucket.index() % n],
        }
    }
}

impl<C: Costs> Costs for StepCosts<C> {
    fn base(&self) -> Option<&dyn Costs> {
        Some(&self.compute)
    }

    fn op(&self, worker: WorkerId, op: &Op) -> f64 {
        self.compute.op(worker, op)
    }

    fn occupies(&self, token: &Token) -> f64 {
        self.compute.occupies(token) + self.message
    }

    fn reduce_occupies(&self, bucket: BucketId) -> f64 {
        self.compute.reduce_occupies(bucket) + self.reduction(bucket).occupies
    }

    fn reduce(&self, bucket: BucketId) -> f64 {
        let ExchangeTime { takes, occupies } = self.reduction(bucket);
        self.compute.reduce(bucket) + takes - occupies
    }

    fn agree(&self) -> f64 {
        self.compute.agree() + self.agree
    }

    fn step(&self, bucket: BucketId) -> f64 {
        let own = match self.updates.len() {
            0 => 0.0,
            n => self.updates[bucket.index() % n],
        };
        self.compute.step(bucket) + own
    }
}
