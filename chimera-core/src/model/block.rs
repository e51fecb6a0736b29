//! One transformer block, pre-norm: `mid = x + attention(norm(x))`, `y = mid + mlp(norm(mid))`.

use crate::kernels::{Kernels, Layout, Result};

/// Weight tensors of a block.
pub(super) const TENSORS: usize = 12;

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
    x: T,
    stats_1: T,
    norm_1: T,
    qkv: T,
    mixed: T,
    log_sum: T,
    mid: T,
    stats_2: T,
    norm_2: T,
    fc: T,
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
        Ok(Saved {
            x: f(&self.x)?,
            stats_1: f(&self.stats_1)?,
            norm_1: f(&self.norm_1)?,
            qkv: f(&self.qkv)?,
            mixed: f(&self.mixed)?,
            log_sum: f(&self.log_sum)?,
            mid: f(&self.mid)?,
            stats_2: f(&self.stats_2)?,
            norm_2: f(&self.norm_2)?,
            fc: f(&self.fc)?,
        })
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

    let (norm_1, stats_1) = k.layer_norm(&x, ln_1, ln_1_bias)?;
    let qkv = linear(&norm_1, attn, attn_bias, None)?;
    let (mixed, log_sum) = k.attention(&qkv, by.heads, by.sequence)?;
    let mid = linear(&mixed, attn_proj, attn_proj_bias, Some(&x))?;

    let (norm_2, stats_2) = k.layer_norm(&mid, ln_2, ln_2_bias)?;
    let fc = linear(&norm_2, fc, fc_bias, None)?;
    let y = linear(&k.gelu(&fc)?, mlp_proj, mlp_proj_bias, Some(&mid))?;

    let saved = Saved { x, stats_1, norm_1, qkv, mixed, log_sum, mid, stats_2, norm_2, fc };
    Ok((y, saved))
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

    let (d_fc, gelu) = k.gelu_dx(&linear_dx(&dy, mlp_proj)?, &saved.fc)?;
    let d_norm_2 = linear_dx(&d_fc, fc)?;
    let d_mid = k.layer_norm_dx(&d_norm_2, &saved.mid, &saved.stats_2, ln_2, Some(&dy))?;

    let d_qkv = k.attention_dx(
        &linear_dx(&d_mid, attn_proj)?,
        &saved.qkv,
        &saved.mixed,
        &saved.log_sum,
        by.heads,
        by.sequence,
    )?;
    let d_norm_1 = linear_dx(&d_qkv, attn)?;
    let dx = k.layer_norm_dx(&d_norm_1, &saved.x, &saved.stats_1, ln_1, Some(&d_mid))?;

    let deferred = Deferred {
        ln_1: Norm { dy: d_norm_1, x: saved.x, stats: saved.stats_1 },
        attn: Linear { x: saved.norm_1, dy: d_qkv },
        attn_proj: Linear { x: saved.mixed, dy: d_mid },
        ln_2: Norm { dy: d_norm_2, x: saved.mid, stats: saved.stats_2 },
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
