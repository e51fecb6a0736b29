//! What one way to train takes: the memory of a rank and the time of a step, before anything runs.

use chimera_core::analyze::Network;
use chimera_core::lower::Recompute;
use chimera_core::schedule::Scaling;

use super::fit::Need;
use crate::settings::{Config, Settings};

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
    /// Whether all of the step was simulated; else time and memory are foreseen from shorter steps.
    pub is_simulated: bool,
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

/// Why an asynchronous schedule is none to choose from.
pub(super) fn no_flush(schedule: &str) -> String {
    format!(
        "schedule {schedule} has no flush, and so no step that takes a time of its own: choose a synchronous schedule"
    )
}
