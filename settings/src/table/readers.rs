//! The runs that read options which not every training reads.

use chimera_core::lower::Recompute;
use chimera_device::Precision;

use crate::{Config, Origin, RecomputedStages};

/// The runs that read an option: their description, and a function that recognizes them.
#[derive(Clone, Copy)]
pub(crate) struct Reader {
    pub(crate) words: &'static str,
    pub(crate) is_in: fn(&Config) -> bool,
}

/// Learning rates that decay.
pub(crate) const FALL: Reader = Reader {
    words: "learning rates that fall: lr-schedule cosine, linear or wsd",
    is_in: Config::lr_falls,
};

/// Optimizers with moments. A caller's own optimizer may read any option.
pub(crate) const MOMENTS: Reader = Reader {
    words: "optimizer adamw, lamb, muon or kfac",
    is_in: |config| config.training.optimizer.name() != "sgd",
};

/// Optimizers with momentum.
pub(crate) const MOMENTUM: Reader = Reader {
    words: "optimizer sgd, muon or kfac",
    is_in: |config| !["adamw", "lamb"].contains(&config.training.optimizer.name()),
};

/// K-FAC.
pub(crate) const KFAC: Reader =
    Reader { words: "optimizer kfac", is_in: |config| config.training.optimizer.preconditions() };

/// Runs in bf16.
pub(crate) const BF16: Reader = Reader {
    words: "runs with precision bf16",
    is_in: |config| config.devices.precision == Precision::Bf16,
};

/// Runs with adapters.
pub(crate) const ADAPTED: Reader =
    Reader { words: "runs with lora", is_in: |config| config.model.lora.is_some() };

/// Pipelines with messages.
pub(crate) const PIPELINES: Reader =
    Reader { words: "pipelines of several workers", is_in: |config| config.schedule.depth > 1 };

/// Runs with a trace.
pub(crate) const TRACED: Reader =
    Reader { words: "runs with trace", is_in: |config| config.output.trace.is_some() };

/// Runs that use a profile.
pub(crate) const PROFILED: Reader = Reader {
    words: "runs with profile or predict",
    is_in: |config| config.costs.profile.is_some() || config.costs.predict.is_some(),
};

/// Runs that choose the stages to recompute.
pub(crate) const CHOOSES: Reader = Reader {
    words: "recompute auto, or recompute-stages auto with recompute full or selective",
    is_in: |config| {
        config.passes.recompute_stages == RecomputedStages::Auto
            && config.passes.recompute != Recompute::None
    },
};

/// Returns warnings about options of a command or program that nothing reads. `config` has the
/// settings before a plan chooses those that are left open.
pub fn unread_options(config: &Config) -> Vec<String> {
    let is_said =
        |key| matches!(config.value(key), Some((_, Origin::CommandLine | Origin::Program)));
    let unread = crate::OPTIONS.iter().filter(|option| is_said(option.name)).filter_map(|option| {
        let words = option.read_in(config).err()?;
        Some(format!("`{}` has no effect: it is for {words}", option.name))
    });
    let too_long = (is_said("warmup") && config.training.warmup > config.training.steps).then(|| {
        format!(
            "`warmup` {} does not end within the {} steps of the training, which never reaches lr {}",
            config.training.warmup, config.training.steps, config.training.lr
        )
    });
    unread.chain(too_long).collect()
}
