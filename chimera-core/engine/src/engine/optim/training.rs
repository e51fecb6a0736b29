//! Settings of a training: seed, learning rate, clipping and other hyperparameters.

use std::f64::consts::PI;
use std::str::FromStr;

use chimera_schedule::compression::Compression;
use chimera_schedule::notation::by_name;

use crate::engine::optim::optimizer::Optimizer;
use crate::engine::optim::param_rules::ParamRules;

/// Reaction to a loss or gradient that is not finite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NonFinite {
    /// Ends the run.
    Stop,
    /// Discards the gradient and goes on; the twentieth such step in a row ends the run.
    Skip,
}

/// Number of consecutive skipped steps that ends the run.
pub(crate) const MOST_SKIPPED: u64 = 20;

impl NonFinite {
    /// Every choice with its name on the command line.
    pub const ALL: [(&'static str, NonFinite); 2] =
        [("stop", NonFinite::Stop), ("skip", NonFinite::Skip)];
}

impl FromStr for NonFinite {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<NonFinite, String> {
        by_name("reaction to values that are not finite", name, &NonFinite::ALL)
    }
}

/// Shape of the learning rate's decay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LrSchedule {
    /// Along half a cosine.
    Cosine,
    /// Linearly.
    Linear,
    /// Linearly at the end only: warm-up, stable, decay (Hu et al., 2024, arXiv:2404.06395).
    Wsd,
    /// No decay.
    Constant,
}

impl LrSchedule {
    /// Every schedule with its name on the command line.
    pub const ALL: [(&'static str, LrSchedule); 4] = [
        ("cosine", LrSchedule::Cosine),
        ("linear", LrSchedule::Linear),
        ("wsd", LrSchedule::Wsd),
        ("constant", LrSchedule::Constant),
    ];
}

impl FromStr for LrSchedule {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<LrSchedule, String> {
        by_name("schedule of the learning rate", name, &LrSchedule::ALL)
    }
}

/// Settings of a training.
#[derive(Clone, PartialEq, Debug)]
pub struct Training {
    /// Seed of the initial weights.
    pub seed: u64,
    /// Number of steps. The learning rate would reach its minimum one step after the last.
    pub steps: u64,
    /// Update rule of the weights.
    pub optimizer: Optimizer,
    /// Highest learning rate.
    pub lr: f64,
    /// Final learning rate, reached one step after the last.
    pub min_lr: f64,
    /// Number of steps at the start in which the learning rate rises linearly.
    pub warmup: u64,
    /// Number of final steps over which the learning rate falls, the first still at the highest
    /// rate. With `None` all after the warm-up, or a fifth of all for [`LrSchedule::Wsd`].
    pub decay_steps: Option<u64>,
    /// Shape of the decay.
    pub lr_schedule: LrSchedule,
    /// Decay of the first moment of AdamW and LAMB.
    pub beta1: f64,
    /// Decay of the second moment of AdamW and LAMB.
    pub beta2: f64,
    /// Added to the root of the second moment by AdamW and LAMB.
    pub eps: f64,
    /// Decay of the momentum of SGD, and of K-FAC's preconditioned gradients.
    pub momentum: f64,
    /// Number of updates between K-FAC's factors; their inverses take effect as many updates later.
    pub kfac_every: u64,
    /// Damping of K-FAC's factors, as a fraction of their mean diagonal, to which it is added.
    pub kfac_damping: f64,
    /// Decay of the running average of K-FAC's factors.
    pub kfac_decay: f64,
    /// Decoupled weight decay of matrices.
    pub weight_decay: f64,
    /// Parameters with their own learning rate or weight decay.
    pub param_groups: ParamRules,
    /// Largest global norm of the gradient; a larger gradient is scaled down to it. Asynchronous
    /// schedules, which update each stage separately, clip by the norm of each stage. If the norm
    /// is exceeded in a window of steps without a border, the window is trained again step by step.
    pub clip: Option<f64>,
    /// Whether to prevent updates from a loss or gradient that is not finite.
    pub check_finite: bool,
    /// Reaction to a loss or gradient that is not finite.
    pub non_finite: NonFinite,
    /// Whether each tensor is updated by only one of its replicas, which keeps the moments and
    /// sends the weights to the others.
    pub shard_optimizer: bool,
    /// Whether gradients are allocated for the first backward of a stage, and only an owner's shard
    /// of their sum is left after their reduction. It needs `shard_optimizer`.
    pub shard_gradients: bool,
    /// Only the owner of a tensor holds its weights between uses, see
    /// [`Lowering::whole_stages`](chimera_schedule::lower::Lowering::whole_stages), which the program
    /// needs. It needs `shard_optimizer`.
    pub shard_weights: bool,
    /// Number of steps after which each rank copies its state to the next rank, in runs that
    /// survive deaths of ranks; 0 for never. If a death destroys state that no replica has, at most
    /// this many steps are computed again.
    pub shadow_every: u64,
    /// Whether gradients and their sums are rounded to bf16 when sent between replicas.
    pub bf16_gradients: bool,
    /// Compression of messages between the workers of a pipeline.
    pub compression: Compression,
    /// Size of a gradient bucket in elements: gradients of a stage beyond it are reduced
    /// separately. Tensors are never split. The sums have the same bits for every size.
    pub bucket_elements: usize,
    /// Number of consecutive ranks, such as those of a node, that add up gradients among themselves
    /// before they exchange sums with other ranks; 0 if all add up at once.
    pub reduce_within: usize,
}

impl Default for Training {
    /// One step of AdamW, with moment decays usual for models like GPT-2. The learning rate has no
    /// warm-up and falls along a cosine to a tenth; there is no weight decay or clipping.
    fn default() -> Training {
        Training {
            seed: 0,
            steps: 1,
            optimizer: Optimizer::adamw(),
            lr: 1e-3,
            min_lr: 1e-4,
            warmup: 0,
            decay_steps: None,
            lr_schedule: LrSchedule::Cosine,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            momentum: 0.9,
            kfac_every: 10,
            kfac_damping: 0.03,
            kfac_decay: 0.9,
            weight_decay: 0.0,
            param_groups: ParamRules::default(),
            clip: None,
            check_finite: true,
            non_finite: NonFinite::Stop,
            shard_optimizer: false,
            shard_gradients: false,
            shard_weights: false,
            shadow_every: 0,
            bf16_gradients: false,
            compression: Compression::default(),
            bucket_elements: 25 << 18,
            reduce_within: 0,
        }
    }
}

impl Training {
    /// Returns true if the updates of a synchronous step must wait for all ranks.
    pub fn needs_barrier(&self) -> bool {
        self.clip.is_some() || self.check_finite
    }

    /// Returns true if the updates of a window without a border are validated at its end, since
    /// they come before the norm of all gradients is known.
    pub fn validates_windows(&self) -> bool {
        self.clip.is_some() || self.non_finite == NonFinite::Skip
    }

    /// Returns true if owners send what they have updated to the other replicas.
    pub(crate) fn gives_updates(&self) -> bool {
        self.shard_optimizer && !self.shard_weights
    }

    /// Returns the learning rate of a step: a linear rise, a plateau, and the scheduled decay.
    pub fn lr_at(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.lr * (step + 1) as f64 / self.warmup as f64;
        }
        let after_warmup = self.steps.saturating_sub(self.warmup).max(1);
        let usual = match self.lr_schedule {
            // the first step still has the highest rate
            LrSchedule::Wsd => self.steps.div_ceil(5).max(2),
            _ => after_warmup,
        };
        let decay_steps = self.decay_steps.unwrap_or(usual).clamp(1, after_warmup);
        let start = self.steps.saturating_sub(decay_steps).max(self.warmup);
        let done = (step.saturating_sub(start) as f64 / decay_steps as f64).min(1.0);
        let left = match self.lr_schedule {
            LrSchedule::Cosine => 0.5 * (1.0 + (PI * done).cos()),
            LrSchedule::Linear | LrSchedule::Wsd => 1.0 - done,
            LrSchedule::Constant => return self.lr,
        };
        self.min_lr + (self.lr - self.min_lr) * left
    }

    /// Returns the factor that brings a gradient of this norm under the limit.
    pub(crate) fn grad_scale(&self, norm: f64) -> f64 {
        self.clip.map_or(1.0, |clip| (clip / norm).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_then_falls_to_the_lowest() {
        let of = |lr_schedule| Training {
            steps: 110,
            lr: 1.0,
            min_lr: 0.2,
            warmup: 10,
            lr_schedule,
            clip: Some(2.0),
            ..Training::default()
        };
        for (schedule, quarter, last) in [
            (LrSchedule::Cosine, 0.2 + 0.4 * (1.0 + 0.5f64.sqrt()), 0.2),
            (LrSchedule::Linear, 0.8, 0.2),
            (LrSchedule::Constant, 1.0, 1.0),
        ] {
            let t = of(schedule);
            assert_eq!([0, 4, 9, 10].map(|step| t.lr_at(step)), [0.1, 0.5, 1.0, 1.0]);
            for (step, lr) in [(35, quarter), (110, last), (1000, last)] {
                assert!((t.lr_at(step) - lr).abs() < 1e-12, "{schedule:?} {step}");
            }
        }
        let late = Training { decay_steps: Some(50), ..of(LrSchedule::Linear) };
        let all = Training { decay_steps: Some(u64::MAX), ..of(LrSchedule::Linear) };
        let short = Training { steps: 4, warmup: 1, ..of(LrSchedule::Wsd) };
        for (t, rates) in [
            (short, [(1, 1.0), (2, 1.0), (3, 0.6), (4, 0.2)]),
            // the last 22 steps decay
            (of(LrSchedule::Wsd), [(10, 1.0), (88, 1.0), (99, 0.6), (110, 0.2)]),
            (late, [(10, 1.0), (60, 1.0), (85, 0.6), (110, 0.2)]),
            (all, [(10, 1.0), (35, 0.8), (60, 0.6), (110, 0.2)]),
        ] {
            for (step, lr) in rates {
                assert!((t.lr_at(step) - lr).abs() < 1e-12, "{:?} {step}", t.decay_steps);
            }
        }
        let t = of(LrSchedule::Cosine);
        assert_eq!((t.grad_scale(1.0), t.grad_scale(4.0)), (1.0, 0.5));
    }

    #[test]
    fn names_are_known() {
        assert_eq!("wsd".parse(), Ok(LrSchedule::Wsd));
        assert!("step".parse::<LrSchedule>().is_err());
    }
}
