//! AdamW, its learning rate, and clipping.

use std::f64::consts::PI;

use crate::kernels::AdamW;

/// How weights are initialised and updated.
#[derive(Clone, PartialEq, Debug)]
pub struct Training {
    /// Seed of the initial weights.
    pub seed: u64,
    /// Number of steps; the learning rate falls to a tenth at the last.
    pub steps: u64,
    /// Highest learning rate.
    pub lr: f64,
    /// Steps of linear rise before it.
    pub warmup: u64,
    /// Decoupled weight decay of matrices.
    pub weight_decay: f64,
    /// Largest global norm of the gradient; larger ones are scaled down to it. Of each stage's own where
    /// stages update on their own (asynchronous schedules).
    pub clip: Option<f64>,
    /// Whether a loss or gradient that is not finite ends the run before it reaches the weights.
    pub check_finite: bool,
}

impl Training {
    /// Whether the updates of a synchronous step must wait for all ranks.
    pub fn needs_barrier(&self) -> bool {
        self.clip.is_some() || self.check_finite
    }

    /// The learning rate of a step: linear warm-up, then half a cosine down to a tenth.
    pub fn lr_at(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.lr * (step + 1) as f64 / self.warmup as f64;
        }
        let decay_steps = self.steps.saturating_sub(self.warmup).max(1);
        let done = ((step - self.warmup) as f64 / decay_steps as f64).min(1.0);
        self.lr * (0.1 + 0.9 * 0.5 * (1.0 + (PI * done).cos()))
    }

    /// The factor that brings a gradient of this norm under the limit.
    pub(super) fn grad_scale(&self, norm: f64) -> f64 {
        self.clip.map_or(1.0, |clip| (clip / norm).min(1.0))
    }

    /// Update number `update`, from 0, of a tensor, in a step.
    pub(super) fn adamw(&self, step: u64, update: u64, decay: bool, grad_scale: f64) -> AdamW {
        AdamW {
            lr: self.lr_at(step),
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: if decay { self.weight_decay } else { 0.0 },
            update: update + 1,
            grad_scale,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_then_falls_to_a_tenth() {
        let t = Training {
            seed: 0,
            steps: 110,
            lr: 1.0,
            warmup: 10,
            weight_decay: 0.0,
            clip: Some(2.0),
            check_finite: true,
        };
        assert_eq!(t.lr_at(0), 0.1);
        assert_eq!(t.lr_at(9), 1.0);
        assert_eq!(t.lr_at(10), 1.0);
        assert!((t.lr_at(60) - 0.55).abs() < 1e-12);
        assert!((t.lr_at(110) - 0.1).abs() < 1e-12);
        assert_eq!((t.grad_scale(1.0), t.grad_scale(4.0)), (1.0, 0.5));
    }
}
