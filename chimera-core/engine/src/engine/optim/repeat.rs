//! Updates that are repeated without a gradient, to predict weights.

use crate::device::{AdamW, Result, Sgd};
use crate::engine::optim::param_group::ParamGroup;

impl ParamGroup<'_> {
    /// Repeats the last [`adamw`](ParamGroup::adamw) `ahead` times: `W - lr * ahead * (m' / (sqrt(v')
    /// + eps) + decay * W)`, with the moments `m'` and `v'` without their bias.
    pub(crate) fn repeat_adamw(mut self, ahead: u32) -> Result<()> {
        let last = self.moments();
        // A first update without a gradient divides `beta * m` by `1 - beta`, which is to be
        // `m / (1 - beta_last^t)`.
        let [beta1, beta2] = last.corrections().map(|correction| 1.0 / (1.0 + correction));
        let lr = last.lr * f64::from(ahead);
        self.tensors.adamw(&AdamW { lr, beta1, beta2, update: 1, ..last })
    }

    /// Repeats the last [`sgd`](ParamGroup::sgd) `ahead` times, with the same momentum each time.
    pub(crate) fn repeat_sgd(mut self, ahead: u32) -> Result<()> {
        let ParamGroup { weight_decay, grad_scale, .. } = self;
        let lr = self.lr * f64::from(ahead);
        self.tensors.sgd(&Sgd { lr, momentum: 1.0, weight_decay, grad_scale })
    }
}
