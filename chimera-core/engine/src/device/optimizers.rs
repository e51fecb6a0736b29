//! What optimizers take.

/// A tensor of weights to be updated, with both moments of its gradient: what AdamW and LAMB take.
#[derive(Debug)]
pub struct Updated<'t, T> {
    /// The weights.
    pub w: &'t mut T,
    /// Their gradient.
    pub g: &'t T,
    /// The first moment.
    pub m: &'t mut T,
    /// The second moment.
    pub v: &'t mut T,
}

/// A tensor of weights to be updated, with its momentum alone: what gradient descent takes.
#[derive(Debug)]
pub struct WithMomentum<'t, T> {
    /// The weights.
    pub w: &'t mut T,
    /// Their gradient.
    pub g: &'t T,
    /// The momentum: the decaying sum of gradients.
    pub m: &'t mut T,
}

/// The hyperparameters of one update by AdamW (Loshchilov & Hutter, 2019, algorithm 2) or LAMB (You et al.,
/// 2020, algorithm 2), which has the same.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdamW {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay: AdamW's weights shrink by `lr * weight_decay` before the update, LAMB adds
    /// as much to the direction.
    pub weight_decay: f64,
    /// Number of this update, from 1; corrects the bias of the moments.
    pub update: u64,
    /// What the gradient is multiplied by first (clipping).
    pub grad_scale: f64,
}

impl AdamW {
    /// `1 - β₁ᵗ` and `1 - β₂ᵗ` of update `t`: the moments, which begin at zero, divided by these have no bias.
    pub fn corrections(&self) -> [f64; 2] {
        [self.beta1, self.beta2].map(|beta| 1.0 - beta.powf(self.update as f64))
    }
}

/// The hyperparameters of one update by gradient descent with momentum (Loshchilov & Hutter, 2019,
/// algorithm 1, its learning rate outside of the momentum).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sgd {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the sum of gradients; 0 for plain descent.
    pub momentum: f64,
    /// Decoupled weight decay: the weights shrink by `lr * weight_decay` before the update.
    pub weight_decay: f64,
    /// What the gradient is multiplied by first (clipping).
    pub grad_scale: f64,
}
