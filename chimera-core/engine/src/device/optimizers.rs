//! Arguments of optimizers.

/// A weight tensor to update, with both moments of its gradient, as AdamW and LAMB need.
#[derive(Debug)]
pub struct Updated<'t, T> {
    /// The weights.
    pub w: &'t mut T,
    /// Gradient of the weights.
    pub g: &'t T,
    /// The first moment.
    pub m: &'t mut T,
    /// The second moment.
    pub v: &'t mut T,
}

/// A weight tensor to update, with its momentum, as gradient descent needs.
#[derive(Debug)]
pub struct WithMomentum<'t, T> {
    /// The weights.
    pub w: &'t mut T,
    /// Gradient of the weights.
    pub g: &'t T,
    /// The momentum: the decaying sum of gradients.
    pub m: &'t mut T,
}

/// Hyperparameters of one update by AdamW (Loshchilov & Hutter, 2019, algorithm 2) or LAMB (You et
/// al., 2020, algorithm 2), which share them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdamW {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the square root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay: AdamW shrinks the weights by `lr * weight_decay` before the update;
    /// LAMB adds `weight_decay * w` to the direction.
    pub weight_decay: f64,
    /// Number of this update, from 1; corrects the bias of the moments.
    pub update: u64,
    /// Factor applied to the gradient first, for clipping.
    pub grad_scale: f64,
}

impl AdamW {
    /// `1 - β₁ᵗ` and `1 - β₂ᵗ` of update `t`. Dividing the moments by these corrects their bias
    /// towards the initial zeros.
    pub fn corrections(&self) -> [f64; 2] {
        [self.beta1, self.beta2].map(|beta| 1.0 - beta.powf(self.update as f64))
    }
}

/// Hyperparameters of one update by gradient descent with momentum (Loshchilov & Hutter, 2019,
/// algorithm 1, with the learning rate outside of the momentum).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sgd {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the sum of gradients; 0 for plain descent.
    pub momentum: f64,
    /// Decoupled weight decay: the weights shrink by `lr * weight_decay` before the update.
    pub weight_decay: f64,
    /// Factor applied to the gradient first, for clipping.
    pub grad_scale: f64,
}
