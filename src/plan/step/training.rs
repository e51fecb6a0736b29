//! How the settings update weights.

use chimera_core::engine::Training;

use crate::device::Precision;
use crate::settings::Config;

/// How the settings update weights.
pub(crate) fn training(config: &Config) -> Training {
    Training {
        seed: config.seed,
        steps: config.steps,
        optimizer: config.optimizer.clone(),
        lr: config.lr,
        min_lr: config.min_lr,
        warmup: config.warmup,
        lr_schedule: config.lr_schedule,
        decay_steps: config.decay_steps,
        beta1: config.beta1,
        beta2: config.beta2,
        eps: config.eps,
        momentum: config.momentum,
        kfac_every: config.kfac_every,
        kfac_damping: config.kfac_damping,
        kfac_decay: config.kfac_decay,
        weight_decay: config.weight_decay,
        param_groups: config.param_groups.clone().unwrap_or_default(),
        clip: (config.clip > 0.0).then_some(config.clip),
        check_finite: config.check_finite,
        non_finite: config.non_finite,
        shard_optimizer: config.shard_optimizer,
        shadow_every: config.shadow_every,
        bf16_gradients: config.reduce_precision == Precision::Bf16,
        bucket_elements: (config.bucket_size.bytes() / 4).max(1) as usize,
    }
}
