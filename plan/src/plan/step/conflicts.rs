//! The table of conflicts: options that contradict each other, or the program that they ask for.

use anyhow::{Result, bail};
use chimera_core::engine::NonFinite;
use chimera_core::lower::{Border, Offloading, Recompute};
use chimera_core::program::Program;
use chimera_core::schedule::Parameter;
use chimera_core::update::{Reads, Update};
use chimera_device::Precision;
use chimera_settings::{Config, Evict, RecomputedStages, Speeds, Survive, Transport};

/// Options that no run can combine.
pub struct Conflict {
    /// The options; a user changes one of them.
    pub options: &'static [&'static str],
    /// The refusal, in which `{option}` stands for the value of an option.
    pub sentence: &'static str,
    when: Condition,
}

/// The condition of a conflict, by what it depends on.
enum Condition {
    /// A condition on the settings, even if they only describe a schedule.
    Schedule(fn(&Config) -> bool),
    /// A condition on the settings of a training.
    Settings(fn(&Config) -> bool),
    /// A condition on the program that follows from the settings.
    Lowered(fn(&Config, &Program) -> bool),
}

/// Every conflict, in the order in which they are checked.
pub static CONFLICTS: &[Conflict] = &[
    Conflict {
        options: &["bpipe", "offload"],
        sentence: "bpipe and offload both decide where excess activations go: choose one of them",
        when: Condition::Schedule(|config| config.passes.bpipe && offloads(config)),
    },
    Conflict {
        options: &["recompute-stages", "recompute"],
        sentence: "recompute-stages {recompute-stages} selects stages to recompute, but recompute \
                   none selects none: choose recompute full or selective too",
        when: Condition::Schedule(|config| {
            let names_stages = matches!(config.passes.recompute_stages, RecomputedStages::These(_));
            names_stages && config.passes.recompute == Recompute::None
        }),
    },
    Conflict {
        options: &["offload", "memory-cap", "profile"],
        sentence: "offload auto moves what exceeds a memory-cap, or as much as costs no time: give the micro-batches \
                   that a worker may hold with --memory-cap, or the time of a move with --profile",
        when: Condition::Settings(|config| {
            let is_bounded = config.passes.memory_cap.is_some() || config.costs.profile.is_some();
            offloads(config) && !is_bounded
        }),
    },
    Conflict {
        options: &["min-lr", "lr"],
        sentence: "min-lr {min-lr} is above lr {lr}: the learning rate falls",
        when: Condition::Settings(|config| {
            config.lr_falls() && config.training.min_lr > config.training.lr
        }),
    },
    Conflict {
        options: &["trace-steps", "steps"],
        sentence: "trace-steps {trace-steps} begins after the last step: steps is {steps}; choose a range that begins before \
                   step {steps}",
        when: Condition::Settings(|config| {
            let first = config.output.trace_steps.0.start;
            config.output.trace.is_some() && first >= config.training.steps
        }),
    },
    Conflict {
        options: &["speeds", "width", "depth"],
        sentence: "speeds {speeds} has more ranks than width {width} x depth {depth}: leave out \
                   the others, or choose another width or depth",
        when: Condition::Settings(|config| {
            let n_speeds = config.schedule.speeds.as_ref().map_or(0, Speeds::n_said);
            n_speeds > config.schedule.width * config.schedule.depth
        }),
    },
    Conflict {
        options: &["shard-optimizer", "mpi-allreduce"],
        sentence: "shard-optimizer and zero give each sum to one replica, and mpi-allreduce to all: choose one of them",
        when: Condition::Settings(|config| {
            config.replicas.shard_optimizer && config.replicas.mpi_allreduce
        }),
    },
    Conflict {
        options: &["reduce-precision"],
        sentence: "gradients go between replicas in f32 or in bf16: tf32 is for products only",
        when: Condition::Settings(|config| config.replicas.reduce_precision == Precision::Tf32),
    },
    Conflict {
        options: &["reduce-precision", "mpi-allreduce"],
        sentence: "MPI has no sums of bf16: choose reduce-precision f32, or leave mpi-allreduce out",
        when: Condition::Settings(|config| {
            config.replicas.mpi_allreduce && config.replicas.reduce_precision != Precision::F32
        }),
    },
    Conflict {
        options: &["survive", "reduce-within", "mpi-allreduce", "transport"],
        sentence: "survive and reduce-within are for sums by messages: leave mpi-allreduce and transport nccl out",
        when: Condition::Settings(|config| {
            let by_messages = survives(config) || config.replicas.reduce_within > 0;
            by_messages && (config.replicas.mpi_allreduce || is_over_nccl(config))
        }),
    },
    Conflict {
        options: &["mpi-allreduce", "transport"],
        sentence: "mpi-allreduce is MPI's, and tensors go over NCCL: choose --transport mpi, or leave it out",
        when: Condition::Settings(|config| config.replicas.mpi_allreduce && is_over_nccl(config)),
    },
    Conflict {
        options: &["wire", "transport"],
        sentence: "wire {wire} packs messages in the memory of the host, and nccl sends them from that of a GPU: choose \
                   --transport mpi or quic, or --wire f32",
        when: Condition::Settings(|config| !config.devices.wire.is_off() && is_over_nccl(config)),
    },
    Conflict {
        options: &["wire", "survive"],
        sentence: "wire {wire} names workers, and survive narrow numbers those that are left anew: name no workers, or \
                   choose survive respawn",
        when: Condition::Settings(|config| {
            config.devices.wire.has_pairs() && config.devices.survive == Survive::Narrow
        }),
    },
    Conflict {
        options: &["evict", "survive"],
        sentence: "evict ends ranks so that the others go on without them: choose survive respawn or narrow",
        when: Condition::Settings(|config| config.devices.evict != Evict::Off && !survives(config)),
    },
    Conflict {
        options: &["shadow-every", "survive"],
        sentence: "shadow-every keeps copies in case a rank dies: choose survive respawn or narrow",
        when: Condition::Settings(|config| config.devices.shadow_every > 0 && !survives(config)),
    },
    Conflict {
        options: &["survive", "shard-optimizer"],
        sentence: "fewer ranks would shard the optimizer differently, and no other rank has a dead \
                   rank's shard: choose survive respawn, or leave shard-optimizer and zero out",
        when: Condition::Settings(|config| {
            config.devices.survive == Survive::Narrow && config.replicas.shard_optimizer
        }),
    },
    Conflict {
        options: &["zero", "survive", "transport"],
        sentence: "zero 3 leaves each shard of the weights on one rank, and gathers them beside other messages: leave \
                   survive and transport nccl out, or choose zero 2",
        when: Condition::Settings(|config| {
            config.replicas.zero > 2 && (survives(config) || is_over_nccl(config))
        }),
    },
    Conflict {
        options: &["adapt-every", "schedule", "border", "survive"],
        sentence: "adapt-every chooses the k of 1f1b between steps: choose schedule 1f1b, border step and survive off, or \
                   leave adapt-every out",
        when: Condition::Settings(|config| {
            let has_k = config.schedule.name.reads().contains(&Parameter::InTurn);
            let is_apt = has_k && config.passes.border == Border::Step && !survives(config);
            config.schedule.adapt_every > 0 && !is_apt
        }),
    },
    Conflict {
        options: &["non-finite", "schedule", "check-finite"],
        sentence: "non-finite skip needs steps that wait for all workers, and a check: choose a synchronous schedule, and \
                   leave check-finite true",
        when: Condition::Lowered(|config, program| {
            let is_checked = config.training.check_finite;
            let is_asynchronous = program.window().update().is_asynchronous();
            config.training.non_finite != NonFinite::Stop && (is_asynchronous || !is_checked)
        }),
    },
    Conflict {
        options: &["optimizer", "schedule"],
        sentence: "the forwards of schedule {schedule} read weights that the optimizer predicts, and {optimizer} predicts none: \
                   choose optimizer adamw or sgd, or another schedule",
        when: Condition::Lowered(|config, program| {
            let is_predicted = program.window().update().row().forward == Reads::Predicted;
            is_predicted && config.training.optimizer.repeat().is_none()
        }),
    },
    Conflict {
        options: &["shard-optimizer", "schedule", "border"],
        sentence: "shard-optimizer and zero need weights that nobody reads while they are updated: choose a synchronous schedule and \
                   border step",
        when: Condition::Lowered(|config, program| {
            config.replicas.shard_optimizer && program.window().update() != Update::Flush
        }),
    },
    Conflict {
        options: &["transport", "bpipe", "offload"],
        sentence: "moves of activations run beside messages, in no common order: leave transport nccl out",
        when: Condition::Lowered(|config, program| {
            program.rules().has_moves() && is_over_nccl(config)
        }),
    },
];

fn offloads(config: &Config) -> bool {
    config.passes.offload != Offloading::None
}

fn is_over_nccl(config: &Config) -> bool {
    config.devices.transport == Transport::Nccl
}

fn survives(config: &Config) -> bool {
    config.devices.survive != Survive::Off
}

/// Refuses settings that describe no schedule.
pub(crate) fn check_schedule(config: &Config) -> Result<()> {
    refuse(config, |found| matches!(found, Condition::Schedule(holds) if holds(config)))
}

/// Refuses settings of a training that contradict each other.
pub(crate) fn check_settings(config: &Config) -> Result<()> {
    config.devices.wire.check(config.schedule.depth).map_err(anyhow::Error::msg)?;
    refuse(config, |found| match found {
        Condition::Schedule(holds) | Condition::Settings(holds) => holds(config),
        Condition::Lowered(_) => false,
    })
}

/// Refuses settings that contradict the program that they ask for.
pub(crate) fn check_program(config: &Config, program: &Program) -> Result<()> {
    refuse(config, |found| matches!(found, Condition::Lowered(holds) if holds(config, program)))
}

fn refuse(config: &Config, holds: impl Fn(&Condition) -> bool) -> Result<()> {
    match CONFLICTS.iter().find(|conflict| holds(&conflict.when)) {
        Some(conflict) => bail!(conflict.with_values(config)),
        None => Ok(()),
    }
}

impl Conflict {
    /// Returns the refusal of these settings.
    fn with_values(&self, config: &Config) -> String {
        let mut sentence = self.sentence.to_owned();
        for option in self.options {
            let value = config.value(option).map_or("none".into(), |(value, _)| match value {
                toml::Value::String(text) => text,
                toml::Value::Float(number) => number.to_string(),
                other => other.to_string(),
            });
            sentence = sentence.replace(&format!("{{{option}}}"), &value);
        }
        sentence
    }
}

#[cfg(test)]
mod tests {
    use chimera_settings::OPTIONS;

    use super::*;

    #[test]
    fn every_conflict_names_options_that_there_are() {
        for Conflict { options, sentence, .. } in CONFLICTS {
            assert!(!options.is_empty() && options.iter().all(|option| is_option(option)));
            let named = sentence.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
            for (name, _) in named {
                assert!(options.contains(&name), "{sentence}");
            }
        }
    }

    fn is_option(name: &str) -> bool {
        OPTIONS.iter().any(|option| option.name == name)
    }
}
