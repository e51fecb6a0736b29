//! What the models here compute with: about fifteen layer-level functions, each backward apart.
//!
//! Models are written once over [`Layers`] and run on every device. The functions sit at the level
//! of layers, not of tensor primitives: that is what the models here need, it leaves each device free
//! to fuse, and it keeps a backend small. Autograd is not used: a pipeline wants the input half and
//! the weight half of a backward pass apart, and weights as arguments.
//!
//! The conventions of [`device`](crate::device) hold, and
//! - activations are matrices `[rows, features]` with `rows = samples * context`: the tokens of one sample are
//!   consecutive rows;
//! - `_dx` computes the gradient of the input, `_dw` **adds** the gradients of the weights to
//!   accumulators.
//!
//! [`Reference`](crate::device::reference::Reference) implements them too, as the oracle of [`conformance`], the suite
//! that every backend calls.

mod arguments;
pub mod conformance;
mod counted;
mod dropout;
mod reference;

pub use arguments::{Activation, Attention, Layout, Mask};
pub use dropout::{Dropout, threefry};

use crate::device::{Device, Result};

/// The layers of a device, see the [module](self).
pub trait Layers: Device {
    /// `tokens[ids[r]] + positions[r mod context]` for each row `r`: `[ids.len(), hidden]` from
    /// `tokens: [vocab, hidden]` and `positions: [at least context, hidden]`.
    fn embedding(
        &self,
        ids: &[u32],
        context: usize,
        tokens: &Self::Tensor,
        positions: &Self::Tensor,
    ) -> Result<Self::Tensor>;

    /// Adds the gradients of [`embedding`](Layers::embedding) for `dy: [ids.len(), hidden]`.
    fn embedding_dw(
        &self,
        ids: &[u32],
        context: usize,
        dy: &Self::Tensor,
        d_tokens: &mut Self::Tensor,
        d_positions: &mut Self::Tensor,
    ) -> Result<()>;

    /// `x w + bias + residual`: `[rows, outputs]` from `x: [rows, inputs]`, `w` in `layout`,
    /// `bias: [outputs]`, `residual: [rows, outputs]`.
    fn linear(
        &self,
        x: &Self::Tensor,
        w: &Self::Tensor,
        layout: Layout,
        bias: Option<&Self::Tensor>,
        residual: Option<&Self::Tensor>,
    ) -> Result<Self::Tensor>;

    /// `dy wᵀ`: the gradient of [`linear`](Layers::linear)'s `x`. (That of `residual` is `dy`.)
    fn linear_dx(
        &self,
        dy: &Self::Tensor,
        w: &Self::Tensor,
        layout: Layout,
    ) -> Result<Self::Tensor>;

    /// Adds `xᵀ dy` to `dw`, in `layout`, and the column sums of `dy` to `d_bias`.
    fn linear_dw(
        &self,
        x: &Self::Tensor,
        dy: &Self::Tensor,
        layout: Layout,
        dw: &mut Self::Tensor,
        d_bias: Option<&mut Self::Tensor>,
    ) -> Result<()>;

    /// Normalises each row to mean 0 and variance 1 (biased, plus `epsilon`), times `gain: [features]`
    /// plus `bias: [features]`. Also returns `[rows, 2]`: each row's mean and reciprocal deviation.
    fn layer_norm(
        &self,
        x: &Self::Tensor,
        gain: &Self::Tensor,
        bias: &Self::Tensor,
        epsilon: f64,
    ) -> Result<(Self::Tensor, Self::Tensor)>;

    /// The gradient of [`layer_norm`](Layers::layer_norm)'s `x`, plus `residual` if given (the
    /// gradient that reaches `x` on the path around the layer).
    fn layer_norm_dx(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        stats: &Self::Tensor,
        gain: &Self::Tensor,
        residual: Option<&Self::Tensor>,
    ) -> Result<Self::Tensor>;

    /// Adds the gradients of `gain` and `bias`.
    fn layer_norm_dw(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        stats: &Self::Tensor,
        d_gain: &mut Self::Tensor,
        d_bias: &mut Self::Tensor,
    ) -> Result<()>;

    /// `f` of each element.
    fn activation(&self, x: &Self::Tensor, f: Activation) -> Result<Self::Tensor>;

    /// The gradient of [`activation`](Layers::activation)'s `x`, and `f(x)` again: a backward pass has
    /// both for the price of one, so the larger of the two need not be kept since the forward pass.
    fn activation_dx(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        f: Activation,
    ) -> Result<(Self::Tensor, Self::Tensor)>;

    /// Drops elements of `x`, and multiplies the others by `1/(1 - rate)`; plus `residual` if given. Its
    /// own gradient: that of `x` is the dropout of `dy` by the same choice, without a residual.
    fn dropout(
        &self,
        x: &Self::Tensor,
        by: &Dropout,
        residual: Option<&Self::Tensor>,
    ) -> Result<Self::Tensor>;

    /// Self-attention of each sample on its own, scaled by `1/√(hidden/heads)`: every row queries the keys that the
    /// mask lets it see.
    /// `qkv: [rows, 3 hidden]` holds queries, keys, values side by side, each split into heads.
    /// Returns the mixed values `[rows, hidden]` and the log-sum-exp of the scores `[rows, heads]`.
    fn attention(
        &self,
        qkv: &Self::Tensor,
        by: &Attention<'_>,
    ) -> Result<(Self::Tensor, Self::Tensor)>;

    /// The gradient of [`attention`](Layers::attention)'s `qkv`; `out` and `log_sum` are its results.
    fn attention_dx(
        &self,
        dy: &Self::Tensor,
        qkv: &Self::Tensor,
        out: &Self::Tensor,
        log_sum: &Self::Tensor,
        by: &Attention<'_>,
    ) -> Result<Self::Tensor>;

    /// Softmax cross-entropy of `logits: [rows, vocab]` against `targets` (one class per row), forward
    /// and backward in one pass. Returns the sum over rows of the loss in nats times `scale`, shape
    /// `[1]`, and its gradient `scale * (softmax - one_hot)`, which may take the memory of `logits`.
    fn cross_entropy(
        &self,
        logits: Self::Tensor,
        targets: &[u32],
        scale: f64,
    ) -> Result<(Self::Tensor, Self::Tensor)>;
}
