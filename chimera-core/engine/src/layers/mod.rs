//! The layers that the models in this repository compute with, each with a separate backward.
//!
//! Models are written once over [`Layers`] and run on every device. The functions are layers, not
//! tensor primitives: that suffices for these models, leaves each device free to fuse, and keeps a
//! backend small. Autograd is not used: a pipeline needs the input half and the weight half of a
//! backward pass separately, and weights as arguments.
//!
//! The conventions of [`device`](crate::device) apply. In addition,
//! - activations are matrices `[rows, features]` with `rows = samples * context`: the tokens of one
//!   sample are consecutive rows;
//! - `_dx` computes the gradient of the input; `_dw` **adds** the gradients of the weights to
//!   accumulators.
//!
//! [`Reference`](crate::device::reference::Reference) implements them too. It is the oracle of
//! [`conformance`], the test suite for backends.

mod arguments;
pub mod conformance;
mod counted;
mod dropout;
mod recorded;
mod reference;
mod sliced;

pub use arguments::{Activation, Attention, Layout, Mask, Rotary};
pub use dropout::{Dropout, threefry};
pub use recorded::{Call, Recorded};
pub use sliced::{join_samples, rows_of_samples};

use crate::device::{Device, DeviceError, Result};

/// The target of a row without loss, such as a token of a prompt.
pub const IGNORED: u32 = u32::MAX;

/// Embedding tables.
pub trait Embed: Device {
    /// `tokens[ids[r]] + positions[r mod context]` for each row `r`: `[ids.len(), hidden]` from
    /// `tokens: [vocab, hidden]` and `positions: [at least context, hidden]`.
    fn embedding(
        &self,
        ids: &[u32],
        context: usize,
        tokens: &Self::Tensor,
        positions: &Self::Tensor,
    ) -> Result<Self::Tensor>;

    /// Adds the gradients of [`embedding`](Embed::embedding) for `dy: [ids.len(), hidden]`.
    fn embedding_dw(
        &self,
        ids: &[u32],
        context: usize,
        dy: &Self::Tensor,
        d_tokens: &mut Self::Tensor,
        d_positions: &mut Self::Tensor,
    ) -> Result<()>;

    /// Tabulates the cosines, followed by the sines, of `frequencies` times each position, all
    /// times `factor`: `[context, 2 frequencies.len()]`.
    fn rotary_table(
        &self,
        frequencies: &[f64],
        factor: f64,
        context: usize,
    ) -> Result<Self::Tensor> {
        let row = |position: usize| {
            let angles = frequencies.iter().map(move |frequency| position as f64 * frequency);
            let cosines = angles.clone().map(move |angle| (factor * angle.cos()) as f32);
            cosines.chain(angles.map(move |angle| (factor * angle.sin()) as f32))
        };
        let table = (0..context).flat_map(row).collect();
        self.upload_vec(&[context, 2 * frequencies.len()], table)
    }
}

/// Linear layers.
pub trait Linear: Device {
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

    /// `dy wᵀ`: the gradient of [`linear`](Linear::linear)'s `x`; that of `residual` is `dy`.
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
}

/// Layer norms.
pub trait Norm: Device {
    /// Normalises each row to mean 0 and variance 1 (biased, plus `epsilon`), times `gain: [features]`
    /// plus `bias: [features]`. Also returns `[rows, 2]`: each row's mean and reciprocal deviation.
    fn layer_norm(
        &self,
        x: &Self::Tensor,
        gain: &Self::Tensor,
        bias: &Self::Tensor,
        epsilon: f64,
    ) -> Result<(Self::Tensor, Self::Tensor)>;

    /// The gradient of [`layer_norm`](Norm::layer_norm)'s `x`, plus `residual` if given (the
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
}

/// Functions of each element.
pub trait Pointwise: Device {
    /// `1 / sqrt` of each element, and 0 of those that are not positive; by default on the host.
    fn reciprocal_roots(&self, x: &Self::Tensor) -> Result<Self::Tensor> {
        let root = |x: f32| if x <= 0.0 { 0.0 } else { f64::from(x).sqrt().recip() as f32 };
        let roots = self.download(x)?.into_iter().map(root);
        self.upload_vec(&self.shape(x), roots.collect())
    }

    /// `f` of each element.
    fn activation(&self, x: &Self::Tensor, f: Activation) -> Result<Self::Tensor>;

    /// The gradient of [`activation`](Pointwise::activation)'s `x`, and `f(x)` again. Computing
    /// both costs no more than one, so `f(x)` need not be kept from the forward pass.
    fn activation_dx(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        f: Activation,
    ) -> Result<(Self::Tensor, Self::Tensor)>;

    /// Drops elements of `x`, and multiplies the others by `1/(1 - rate)`; adds `residual` if
    /// given. The gradient of `x` is the dropout of `dy` with the same choice, without a residual.
    fn dropout(
        &self,
        x: &Self::Tensor,
        by: &Dropout,
        residual: Option<&Self::Tensor>,
    ) -> Result<Self::Tensor>;
}

/// Self-attention.
pub trait Attend: Pointwise {
    /// Self-attention within each sample, with scores scaled by the square root of a head's
    /// features. Every row queries the keys that the mask allows. `qkv: [rows, (heads + 2 kv_heads)
    /// d]` holds queries, keys and values side by side, each split into heads of `d`. Returns the
    /// mixed values `[rows, heads d]` and the log-sum-exp of the scores `[rows, heads]`.
    fn attention(
        &self,
        qkv: &Self::Tensor,
        by: &Attention<'_>,
    ) -> Result<(Self::Tensor, Self::Tensor)>;

    /// The gradient of [`attention`](Attend::attention)'s `qkv`; `out` and `log_sum` are its results.
    fn attention_dx(
        &self,
        dy: &Self::Tensor,
        qkv: &Self::Tensor,
        out: &Self::Tensor,
        log_sum: &Self::Tensor,
        by: &Attention<'_>,
    ) -> Result<Self::Tensor>;

    /// [`attention`](Attend::attention) of rows that follow the first `past` rows of a single
    /// sample, for decoding with a cache. `cache`, initially zeros of `[by.context, (heads + 2
    /// kv_heads) d]`, holds the keys and values of the past rows in a device-specific order; those
    /// of `qkv` are added. There is no dropout, and the mask is causal, with a window if given.
    /// This default keeps all rows as the `cache`, and recomputes the results of earlier rows.
    fn attention_after(
        &self,
        qkv: &Self::Tensor,
        cache: &mut Self::Tensor,
        past: usize,
        by: &Attention<'_>,
    ) -> Result<(Self::Tensor, Self::Tensor)> {
        let n = self.shape(qkv)[0];
        *cache = self.join(&[&self.rows(cache, 0, past)?, qkv])?;
        let by = Attention { context: past + n, ..*by };
        let (out, log_sum) = self.attention(cache, &by)?;
        Ok((self.rows(&out, past, n)?, self.rows(&log_sum, past, n)?))
    }

    /// [`attention`](Attend::attention) of only the rows of each sample from `first` on. `qkv` has
    /// all rows of each sample, the results only those from `first` on. There is no dropout. This
    /// default computes the results of earlier rows too.
    fn attention_slice(
        &self,
        qkv: &Self::Tensor,
        first: usize,
        by: &Attention<'_>,
    ) -> Result<(Self::Tensor, Self::Tensor)> {
        sliced::forward(self, qkv, first, by)
    }

    /// The gradient of [`attention_slice`](Attend::attention_slice)'s `qkv`, for all rows; `mixed` has
    /// its results.
    fn attention_slice_dx(
        &self,
        dy: &Self::Tensor,
        qkv: &Self::Tensor,
        mixed: (&Self::Tensor, &Self::Tensor),
        first: usize,
        by: &Attention<'_>,
    ) -> Result<Self::Tensor> {
        sliced::backward(self, dy, qkv, mixed, first, by)
    }
}

/// The loss at the end of a model.
pub trait Loss: Device {
    /// Softmax cross-entropy of `logits: [rows, vocab]` against `targets` (one class per row),
    /// forward and backward in one pass. Returns the sum over rows of the loss in nats times
    /// `scale`, of shape `[1]`, and its gradient `scale * (softmax - one_hot)`, which may reuse the
    /// memory of `logits`. Rows with the target [`IGNORED`] have neither loss nor gradient.
    fn cross_entropy(
        &self,
        logits: Self::Tensor,
        targets: &[u32],
        scale: f64,
    ) -> Result<(Self::Tensor, Self::Tensor)>;
}

/// All layers of a device, see the [module](self).
pub trait Layers: Embed + Linear + Norm + Pointwise + Attend + Loss {
    /// The additional layers of Llama-style models, if the device has them. Without them such a
    /// model is refused before the start.
    fn llama(&self) -> Option<&dyn LlamaLayers<Self::Tensor>> {
        None
    }
}

/// The layers that only Llama-style models need. A device with these layers must also support
/// [`attention`](Attend::attention) with fewer key heads than query heads, and with a sliding
/// window. `T` is the device's tensor type.
pub trait LlamaLayers<T> {
    /// Divides each row by its root mean square (of a mean plus `epsilon`), times `gain:
    /// [features]` (Zhang & Sennrich, 2019). Also returns the factor of each row, `[rows, 1]`.
    fn rms_norm(&self, x: &T, gain: &T, epsilon: f64) -> Result<(T, T)>;

    /// The gradient of [`rms_norm`](LlamaLayers::rms_norm)'s `x`, plus `residual` if given.
    fn rms_norm_dx(&self, dy: &T, x: &T, stats: &T, gain: &T, residual: Option<&T>) -> Result<T>;

    /// Adds the gradient of `gain`.
    fn rms_norm_dw(&self, dy: &T, x: &T, stats: &T, d_gain: &mut T) -> Result<()>;

    /// `f(gate) up`, element by element: `[rows, features]` from `x: [rows, 2 features]`, which
    /// holds gate and up side by side.
    fn gated(&self, x: &T, f: Activation) -> Result<T>;

    /// The gradient of [`gated`](LlamaLayers::gated)'s `x`, and its result again.
    fn gated_dx(&self, dy: &T, x: &T, f: Activation) -> Result<(T, T)>;

    /// Rotates the first `by.heads` heads of each row of `x` (RoPE: Su et al., 2021): features `a =
    /// x[i]` and `b = x[i + d/2]` of a head of `d` become `cos a - sin b` and `cos b + sin a`.
    /// `table: [context, d]` is a [`rotary_table`](Embed::rotary_table); row `r` is at position `r
    /// mod context`. The rest of the row stays as it is. The gradient of `x` is the same function
    /// of `dy` with negated sines, selected by `by.backward`.
    fn rotary(&self, x: &T, table: &T, by: Rotary) -> Result<T>;
}

/// Returns the layers of Llama-style models on `device`.
///
/// # Errors
/// If the device has none.
pub fn llama_layers<D: Layers>(device: &D) -> Result<&dyn LlamaLayers<D::Tensor>> {
    device.llama().ok_or_else(|| DeviceError::Failed {
        device: device.name(),
        op: "llama",
        reason: "it lacks the layers of Llama-style models".into(),
    })
}
