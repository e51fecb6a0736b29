//! The settings of weight updates.

use chimera_core::engine::Training;
use chimera_device::Precision;
use chimera_settings::Config;

/// Returns the settings of weight updates.
pub(crate) fn training(config: &Config) -> Training {
    Training {
        seed: config.training.seed,
        steps: config.training.steps,
        optimizer: config.training.optimizer.clone(),
        lr: config.training.lr,
        min_lr: config.training.min_lr,
        warmup: config.training.warmup,
        lr_schedule: config.training.lr_schedule,
        decay_steps: config.training.decay_steps,
        beta1: config.training.beta1,
        beta2: config.training.beta2,
        eps: config.training.eps,
        momentum: config.training.momentum,
        kfac_every: config.training.kfac_every,
        kfac_damping: config.training.kfac_damping,
        kfac_decay: config.training.kfac_decay,
        weight_decay: config.training.weight_decay,
        param_groups: config.training.param_groups.clone().unwrap_or_default(),
        clip: (config.training.clip > 0.0).then_some(config.training.clip),
        check_finite: config.training.check_finite,
        non_finite: config.training.non_finite,
        shard_optimizer: config.replicas.shard_optimizer,
        shard_gradients: config.replicas.zero > 1,
        shard_weights: config.replicas.zero > 2,
        shadow_every: config.devices.shadow_every,
        compression: config.devices.wire.clone(),
        bf16_gradients: config.replicas.reduce_precision == Precision::Bf16,
        reduce_within: config.replicas.reduce_within as usize,
        bucket_elements: (config.replicas.bucket_size.bytes() / 4).max(1) as usize,
    }
}
