//! One transformer block, pre-norm: `mid = x + attention(norm(x))`, `y = mid + mlp(norm(mid))`.

use crate::kernels::{Activation, Kernels, Layout, Mask, Result};

/// Weight tensors of a block.
pub(super) const TENSORS: usize = 12;

/// What the layer norms of GPT-2 add to the variance.
pub(super) const EPSILON: f64 = 1e-5;

/// How the rows of a block's input are divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attention {
    /// Heads per row.
    pub(super) heads: usize,
    /// Rows per sample.
    pub(super) sequence: usize,
}

/// What the backward pass needs. GELU's output, as large as `fc`, is made again.
#[derive(Debug)]
pub(super) struct Saved<T> {
    selected: Selected<T>,
    stats_1: T,
    norm_1: T,
    stats_2: T,
    norm_2: T,
    fc: T,
}

/// The half of [`Saved`] that a third of the forward work makes the other half from: what lies behind the
/// attention, and the inputs of both halves of the block.
#[derive(Debug)]
pub(super) struct Selected<T> {
    x: T,
    qkv: T,
    mixed: T,
    log_sum: T,
    mid: T,
}

/// The weight gradients that are still to be computed.
#[derive(Debug)]
pub(super) struct Deferred<T> {
    ln_1: Norm<T>,
    attn: Linear<T>,
    attn_proj: Linear<T>,
    ln_2: Norm<T>,
    fc: Linear<T>,
    mlp_proj: Linear<T>,
}

/// The operands of a layer norm's weight gradient.
#[derive(Debug)]
pub(super) struct Norm<T> {
    pub(super) dy: T,
    pub(super) x: T,
    pub(super) stats: T,
}

/// The operands of a linear layer's weight gradient.
#[derive(Debug)]
pub(super) struct Linear<T> {
    pub(super) x: T,
    pub(super) dy: T,
}

impl<T> Saved<T> {
    /// Applies `f` to each tensor.
    pub(super) fn map<U>(&self, mut f: impl FnMut(&T) -> Result<U>) -> Result<Saved<U>> {
        let Selected { x, qkv, mixed, log_sum, mid } = &self.selected;
        let selected = Selected {
            x: f(x)?,
            qkv: f(qkv)?,
            mixed: f(mixed)?,
            log_sum: f(log_sum)?,
            mid: f(mid)?,
        };
        Ok(Saved {
            selected,
            stats_1: f(&self.stats_1)?,
            norm_1: f(&self.norm_1)?,
            stats_2: f(&self.stats_2)?,
            norm_2: f(&self.norm_2)?,
            fc: f(&self.fc)?,
        })
    }

    /// What selective recomputation keeps.
    pub(super) fn select(self) -> Selected<T> {
        self.selected
    }
}

impl<T> Selected<T> {
    /// All tensors.
    pub(super) fn tensors(&self) -> [&T; 5] {
        [&self.x, &self.qkv, &self.mixed, &self.log_sum, &self.mid]
    }
}

impl<T> Deferred<T> {
    /// All tensors.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &T> {
        let norms = [&self.ln_1, &self.ln_2].into_iter().flat_map(Norm::tensors);
        let linears = [&self.attn, &self.attn_proj, &self.fc, &self.mlp_proj];
        norms.chain(linears.into_iter().flat_map(Linear::tensors))
    }
}

impl<T> Norm<T> {
    /// All tensors.
    pub(super) fn tensors(&self) -> [&T; 3] {
        [&self.dy, &self.x, &self.stats]
    }
}

impl<T> Linear<T> {
    /// All tensors.
    pub(super) fn tensors(&self) -> [&T; 2] {
        [&self.x, &self.dy]
    }
}

/// From `x: [rows, hidden]` to the block's output of the same shape.
pub(super) fn forward<K: Kernels>(
    k: &K,
    by: Attention,
    w: &[K::Tensor; TENSORS],
    x: K::Tensor,
) -> Result<(K::Tensor, Saved<K::Tensor>)> {
    let [
        ln_1,
        ln_1_bias,
        attn,
        attn_bias,
        attn_proj,
        attn_proj_bias,
        ln_2,
        ln_2_bias,
        fc,
        fc_bias,
        mlp_proj,
        mlp_proj_bias,
    ] = w;
    let linear = |x, w, bias, residual| k.linear(x, w, Layout::InOut, Some(bias), residual);

    let (norm_1, stats_1) = k.layer_norm(&x, ln_1, ln_1_bias, EPSILON)?;
    let qkv = linear(&norm_1, attn, attn_bias, None)?;
    let (mixed, log_sum) = k.attention(&qkv, by.heads, by.sequence, Mask::Causal)?;
    let mid = linear(&mixed, attn_proj, attn_proj_bias, Some(&x))?;

    let (norm_2, stats_2) = k.layer_norm(&mid, ln_2, ln_2_bias, EPSILON)?;
    let fc = linear(&norm_2, fc, fc_bias, None)?;
    let y = linear(&k.activation(&fc, Activation::GeluTanh)?, mlp_proj, mlp_proj_bias, Some(&mid))?;

    let selected = Selected { x, qkv, mixed, log_sum, mid };
    Ok((y, Saved { selected, stats_1, norm_1, stats_2, norm_2, fc }))
}

/// What the forward pass saved, to the bit.
pub(super) fn restore<K: Kernels>(
    k: &K,
    w: &[K::Tensor; TENSORS],
    selected: Selected<K::Tensor>,
) -> Result<Saved<K::Tensor>> {
    let [ln_1, ln_1_bias, _, _, _, _, ln_2, ln_2_bias, fc, fc_bias, _, _] = w;
    let (norm_1, stats_1) = k.layer_norm(&selected.x, ln_1, ln_1_bias, EPSILON)?;
    let (norm_2, stats_2) = k.layer_norm(&selected.mid, ln_2, ln_2_bias, EPSILON)?;
    let fc = k.linear(&norm_2, fc, Layout::InOut, Some(fc_bias), None)?;
    Ok(Saved { selected, stats_1, norm_1, stats_2, norm_2, fc })
}

/// From the gradient of the output to that of the input.
pub(super) fn backward_input<K: Kernels>(
    k: &K,
    by: Attention,
    w: &[K::Tensor; TENSORS],
    saved: Saved<K::Tensor>,
    dy: K::Tensor,
) -> Result<(K::Tensor, Deferred<K::Tensor>)> {
    let [ln_1, _, attn, _, attn_proj, _, ln_2, _, fc, _, mlp_proj, _] = w;
    let linear_dx = |dy, w| k.linear_dx(dy, w, Layout::InOut);

    let Selected { x, qkv, mixed, log_sum, mid } = saved.selected;
    let (d_fc, gelu) =
        k.activation_dx(&linear_dx(&dy, mlp_proj)?, &saved.fc, Activation::GeluTanh)?;
    let d_norm_2 = linear_dx(&d_fc, fc)?;
    let d_mid = k.layer_norm_dx(&d_norm_2, &mid, &saved.stats_2, ln_2, Some(&dy))?;

    let d_qkv = k.attention_dx(
        &linear_dx(&d_mid, attn_proj)?,
        &qkv,
        &mixed,
        &log_sum,
        by.heads,
        by.sequence,
        Mask::Causal,
    )?;
    let d_norm_1 = linear_dx(&d_qkv, attn)?;
    let dx = k.layer_norm_dx(&d_norm_1, &x, &saved.stats_1, ln_1, Some(&d_mid))?;

    let deferred = Deferred {
        ln_1: Norm { dy: d_norm_1, x, stats: saved.stats_1 },
        attn: Linear { x: saved.norm_1, dy: d_qkv },
        attn_proj: Linear { x: mixed, dy: d_mid },
        ln_2: Norm { dy: d_norm_2, x: mid, stats: saved.stats_2 },
        fc: Linear { x: saved.norm_2, dy: d_fc },
        mlp_proj: Linear { x: gelu, dy },
    };
    Ok((dx, deferred))
}

/// Adds the gradients of the weights to `into`.
pub(super) fn backward_weight<K: Kernels>(
    k: &K,
    deferred: Deferred<K::Tensor>,
    into: &mut [K::Tensor; TENSORS],
) -> Result<()> {
    let [
        ln_1,
        ln_1_bias,
        attn,
        attn_bias,
        attn_proj,
        attn_proj_bias,
        ln_2,
        ln_2_bias,
        fc,
        fc_bias,
        mlp_proj,
        mlp_proj_bias,
    ] = into;
    // Each operand is given back as soon as it is used.
    let linear_dw = |d: Linear<K::Tensor>, dw, d_bias| {
        k.linear_dw(&d.x, &d.dy, Layout::InOut, dw, Some(d_bias))
    };
    let norm_dw =
        |d: Norm<K::Tensor>, d_gain, d_bias| k.layer_norm_dw(&d.dy, &d.x, &d.stats, d_gain, d_bias);
    linear_dw(deferred.mlp_proj, mlp_proj, mlp_proj_bias)?;
    linear_dw(deferred.fc, fc, fc_bias)?;
    norm_dw(deferred.ln_2, ln_2, ln_2_bias)?;
    linear_dw(deferred.attn_proj, attn_proj, attn_proj_bias)?;
    linear_dw(deferred.attn, attn, attn_bias)?;
    norm_dw(deferred.ln_1, ln_1, ln_1_bias)
}
