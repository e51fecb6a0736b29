//! One transformer block, pre-norm. Without dropout `mid = x + attention(norm(x))`, `y = mid + mlp(norm(mid))`.

use super::super::operands::{Linear, Norm};
use super::super::pass::{Pass, projections};
use crate::device::Result;
use crate::layers::{Activation, Layers, Layout};

/// Weight tensors of a block.
pub(super) const TENSORS: usize = 12;

/// What the layer norms of GPT-2 add to the variance.
pub(super) const EPSILON: f64 = 1e-5;

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

impl<T> Saved<T> {
    /// Applies `f` to each tensor.
    pub(super) fn map<U>(&self, mut f: impl FnMut(&T) -> Result<U>) -> Result<Saved<U>> {
        Ok(Saved {
            selected: self.selected.map(&mut f)?,
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
    /// Applies `f` to each tensor.
    pub(super) fn map<U>(&self, mut f: impl FnMut(&T) -> Result<U>) -> Result<Selected<U>> {
        Ok(Selected {
            x: f(&self.x)?,
            qkv: f(&self.qkv)?,
            mixed: f(&self.mixed)?,
            log_sum: f(&self.log_sum)?,
            mid: f(&self.mid)?,
        })
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

/// From `x: [rows, hidden]` to the output of block `block`, of the same shape.
pub(super) fn forward<D: Layers>(
    pass: &Pass<'_, D>,
    block: usize,
    w: &[D::Tensor; TENSORS],
    x: D::Tensor,
) -> Result<(D::Tensor, Saved<D::Tensor>)> {
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
    let (device, [drop_attn, drop_mlp]) = (pass.device, projections(block));
    let linear = |x, w, bias| device.linear(x, w, Layout::InOut, Some(bias), None);
    let add = |drop, x, w, bias, to| pass.linear(drop, x, w, Layout::InOut, Some(bias), to);

    let (norm_1, stats_1) = device.layer_norm(&x, ln_1, ln_1_bias, EPSILON)?;
    let qkv = linear(&norm_1, attn, attn_bias)?;
    let (mixed, log_sum) = pass.attention(block, &qkv)?;
    let mid = add(drop_attn, &mixed, attn_proj, attn_proj_bias, &x)?;

    let (norm_2, stats_2) = device.layer_norm(&mid, ln_2, ln_2_bias, EPSILON)?;
    let fc = linear(&norm_2, fc, fc_bias)?;
    let gelu = device.activation(&fc, Activation::GeluTanh)?;
    let y = add(drop_mlp, &gelu, mlp_proj, mlp_proj_bias, &mid)?;

    let selected = Selected { x, qkv, mixed, log_sum, mid };
    Ok((y, Saved { selected, stats_1, norm_1, stats_2, norm_2, fc }))
}

/// What the forward pass saved, to the bit.
pub(super) fn restore<D: Layers>(
    device: &D,
    w: &[D::Tensor; TENSORS],
    selected: Selected<D::Tensor>,
) -> Result<Saved<D::Tensor>> {
    let [ln_1, ln_1_bias, _, _, _, _, ln_2, ln_2_bias, fc, fc_bias, _, _] = w;
    let (norm_1, stats_1) = device.layer_norm(&selected.x, ln_1, ln_1_bias, EPSILON)?;
    let (norm_2, stats_2) = device.layer_norm(&selected.mid, ln_2, ln_2_bias, EPSILON)?;
    let fc = device.linear(&norm_2, fc, Layout::InOut, Some(fc_bias), None)?;
    Ok(Saved { selected, stats_1, norm_1, stats_2, norm_2, fc })
}

/// From the gradient of the output to that of the input.
pub(super) fn backward_input<D: Layers>(
    pass: &Pass<'_, D>,
    block: usize,
    w: &[D::Tensor; TENSORS],
    saved: Saved<D::Tensor>,
    dy: D::Tensor,
) -> Result<(D::Tensor, Deferred<D::Tensor>)> {
    let [ln_1, _, attn, _, attn_proj, _, ln_2, _, fc, _, mlp_proj, _] = w;
    let (device, [drop_attn, drop_mlp]) = (pass.device, projections(block));
    let linear_dx = |dy, w| device.linear_dx(dy, w, Layout::InOut);

    let Selected { x, qkv, mixed, log_sum, mid } = saved.selected;
    let d_mlp = pass.dropped(drop_mlp, &dy)?;
    let d_gelu = linear_dx(&d_mlp, mlp_proj)?;
    let (d_fc, gelu) = device.activation_dx(&d_gelu, &saved.fc, Activation::GeluTanh)?;
    let d_norm_2 = linear_dx(&d_fc, fc)?;
    let d_mid = device.layer_norm_dx(&d_norm_2, &mid, &saved.stats_2, ln_2, Some(&dy))?;

    let d_attn = pass.dropped(drop_attn, &d_mid)?;
    let d_mixed = linear_dx(&d_attn, attn_proj)?;
    let d_qkv = pass.attention_dx(block, &d_mixed, &qkv, &mixed, &log_sum)?;
    let d_norm_1 = linear_dx(&d_qkv, attn)?;
    let dx = device.layer_norm_dx(&d_norm_1, &x, &saved.stats_1, ln_1, Some(&d_mid))?;

    let deferred = Deferred {
        ln_1: Norm { dy: d_norm_1, x, stats: saved.stats_1 },
        attn: Linear { x: saved.norm_1, dy: d_qkv },
        attn_proj: Linear { x: mixed, dy: d_attn },
        ln_2: Norm { dy: d_norm_2, x: mid, stats: saved.stats_2 },
        fc: Linear { x: saved.norm_2, dy: d_fc },
        mlp_proj: Linear { x: gelu, dy: d_mlp },
    };
    Ok((dx, deferred))
}

/// Adds the gradients of the weights to `into`.
pub(super) fn backward_weight<D: Layers>(
    device: &D,
    deferred: Deferred<D::Tensor>,
    into: &mut [D::Tensor; TENSORS],
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
    let at = Layout::InOut;
    deferred.mlp_proj.add(device, at, mlp_proj, Some(mlp_proj_bias))?;
    deferred.fc.add(device, at, fc, Some(fc_bias))?;
    deferred.ln_2.add(device, ln_2, ln_2_bias)?;
    deferred.attn_proj.add(device, at, attn_proj, Some(attn_proj_bias))?;
    deferred.attn.add(device, at, attn, Some(attn_bias))?;
    deferred.ln_1.add(device, ln_1, ln_1_bias)
}
