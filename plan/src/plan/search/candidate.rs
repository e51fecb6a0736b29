//! The cost of one candidate: the memory of a rank and the time of a step, before anything runs.

use std::sync::Arc;

use chimera_core::analyze::{Network, Topology};
use chimera_core::lower::{Recompute, Sync};
use chimera_core::schedule::Parameter;
use chimera_settings::schedules::Named;
use chimera_settings::{Config, Layout, RecomputedStages, Scaling, ScheduleSettings, Settings};
use toml::Value;

use super::ways::is_free;
use crate::plan::costs::own_times::OwnTimes;
use crate::plan::costs::rate::Rate;
use crate::plan::need::Need;
use crate::plan::rank_memory::RankMemory;
use crate::profile::ProfiledTimes;

/// The ranks of a run. Their relative speeds are part of the configuration.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Ranks, W x D.
    pub n_ranks: usize,
    /// Memory of each rank.
    pub memory: RankMemory,
    /// Speed of each rank.
    pub speed: Speed,
    /// Nodes and links. Its width is not read: every candidate has its own.
    pub network: Network,
    /// The topology whose links messages and reductions share, instead of the network.
    pub topology: Option<Arc<Topology>>,
}

/// The speed at which a rank computes.
#[derive(Clone, Debug)]
pub enum Speed {
    /// Floating-point operations per second.
    Flops(Rate),
    /// Measured times.
    Measured(ProfiledTimes),
    /// The times of a run's own ops.
    Own(OwnTimes),
}

impl Speed {
    /// Returns the measured times, if there are any.
    pub(crate) fn times(&self) -> Option<&ProfiledTimes> {
        match self {
            Speed::Flops(_) | Speed::Own(_) => None,
            Speed::Measured(times) => Some(times),
        }
    }
}

/// A configuration that fits, with its costs.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// All settings.
    pub config: Config,
    /// Memory of the rank nearest to its limit.
    pub need: Need,
    /// Seconds of a step, without the optimizer's update.
    pub step_s: f64,
    /// Idle time of the pipeline.
    pub bubble_ratio: f64,
    /// Whether the whole step was simulated; otherwise time and memory are extrapolated from
    /// shorter steps.
    pub is_simulated: bool,
}

impl Candidate {
    /// Returns the tokens trained on per second.
    pub fn tokens_per_s(&self) -> f64 {
        let ScheduleSettings { width, micro_batches, micro_batch_size, .. } = self.config.schedule;
        let sequence = self.config.model.sequence;
        [width, micro_batches, micro_batch_size, sequence].map(|n| n as f64).iter().product::<f64>()
            / self.step_s
    }

    /// Returns the settings to choose it, on top of those that the user has set.
    pub fn settings(&self, said: &Settings) -> Settings {
        let config = &self.config;
        // Files count too: their values hold if nothing else is set.
        let says_recompute = !is_free(config, "recompute");
        let chosen = [
            ("width", true),
            ("depth", true),
            ("schedule", true),
            ("micro-batches", true),
            ("micro-batch-size", true),
            (
                "scaling",
                config.schedule.micro_batches > config.schedule.depth && self.reads_scaling(),
            ),
            ("recompute", says_recompute || config.passes.recompute != Recompute::None),
            (
                "recompute-stages",
                matches!(config.passes.recompute_stages, RecomputedStages::These(_)),
            ),
            ("shard-optimizer", config.replicas.shard_optimizer),
            ("layout", matches!(config.schedule.layout, Layout::Is(_))),
            ("sync", self.has_unusual_sync()),
        ];
        let chosen = chosen.into_iter().filter(|(_, is_told)| *is_told);
        let values = chosen.filter_map(|(key, _)| Some((key, config.value(key)?.0)));
        let values = values.chain(self.parameters());
        // The plan has found that all of them have to recompute.
        let all = (config.passes.recompute_stages == RecomputedStages::Auto)
            .then(|| ("recompute-stages", Value::from("all")));
        let values = values.chain(all);
        values.fold(said.clone(), |settings, (key, value)| settings.with(key, value))
    }

    /// Returns the parameters of its schedule that differ from their defaults, by name, without its scaling.
    pub fn parameters(&self) -> impl Iterator<Item = (&'static str, Value)> {
        let read = self.reads().iter().filter(|parameter| **parameter != Parameter::Scaling);
        read.filter_map(|parameter| {
            let name = parameter.name();
            self.config.unusual(name).map(|value| (name, value))
        })
    }

    /// Returns the start of its gradient reductions, by name.
    pub fn sync(&self) -> &'static str {
        name(&Sync::ALL, self.config.replicas.sync)
    }

    /// Returns true if its gradient reductions do not start at the default point.
    pub fn has_unusual_sync(&self) -> bool {
        self.config.unusual("sync").is_some()
    }

    /// Returns the parameters that its schedule reads.
    fn reads(&self) -> &'static [Parameter] {
        if self.config.schedule.depth > 1 { self.config.schedule.name.reads() } else { &[] }
    }

    /// Returns true if its schedule reads the scaling.
    pub fn reads_scaling(&self) -> bool {
        self.reads().contains(&Parameter::Scaling)
    }

    /// Returns the layers of its stages, unless these have equal work.
    pub fn layout(&self) -> Option<String> {
        let layout = &self.config.schedule.layout;
        (*layout != Layout::Balanced).then(|| layout.to_string())
    }

    /// Returns the scaling of its schedule, by name.
    pub fn scaling(&self) -> &'static str {
        name(&Scaling::ALL, self.config.schedule.scaling)
    }

    /// Returns its recomputation by name, with the stages that recompute unless all do.
    pub fn recomputed(&self) -> String {
        match &self.config.passes.recompute_stages {
            stages @ RecomputedStages::These(_) => format!("{} {stages}", self.recompute()),
            RecomputedStages::All | RecomputedStages::Auto => self.recompute().to_string(),
        }
    }

    /// Returns its recomputation by name.
    pub fn recompute(&self) -> &'static str {
        name(&Recompute::ALL, self.config.passes.recompute)
    }
}

fn name<T: Copy + PartialEq>(all: &[(&'static str, T)], value: T) -> &'static str {
    all.iter().find(|(_, one)| *one == value).map_or("", |(name, _)| name)
}

/// The outcome of trying a configuration.
pub(crate) enum Fit {
    Fits(Candidate),
    /// The least that its peak rank needs.
    TooLarge(Config, Need),
}

/// Returns why an asynchronous schedule cannot be chosen.
pub(crate) fn no_flush(schedule: &Named) -> String {
    format!(
        "schedule {schedule} has no flush after each step, so no single step has a time of its \
         own: choose a synchronous schedule, and leave `border` out"
    )
}
