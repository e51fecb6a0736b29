//! One transformer block, post-norm. Without dropout: `mid = norm(x + attention(x))`,
//! `y = norm(mid + mlp(mid))`.

use chimera_engine::device::Result;
use chimera_engine::layers::{Activation, Layers, Layout};

use super::super::operands::{Linear, Norm};
use super::EPSILON;
use crate::model::block::deferred::Deferred;
use crate::model::block::kept::{KeptBlock, tensors};
use crate::model::block::pass::{Pass, projections};

/// Weight tensors of a block.
pub(super) const TENSORS: usize = 12;

tensors! {
    /// The saved activations. GELU's output, as large as `fc`, is recomputed.
    pub(super) Saved { selected: Selected<T> } { stats_1, mid, fc, stats_2 }
}

tensors! {
    /// The half of [`Saved`] from which the other half can be made with a third of the forward
    /// work: the results of attention, and the inputs of block and norms.
    pub(super) Selected {} { x, qkv, mixed, log_sum, sum_1, sum_2 }
}

/// Maps `x: [rows, hidden]` to the output of block `block`, of the same shape.
pub(super) fn forward<D: Layers>(
    pass: &Pass<'_, D>,
    block: usize,
    w: &[D::Tensor; TENSORS],
    x: D::Tensor,
) -> Result<(D::Tensor, Saved<D::Tensor>)> {
    let [
        qkv,
        qkv_bias,
        out,
        out_bias,
        norm_1,
        norm_1_bias,
        fc,
        fc_bias,
        proj,
        proj_bias,
        norm_2,
        norm_2_bias,
    ] = w;
    let (device, [drop_out, drop_mlp]) = (pass.device, projections(block));

    let qkv = device.linear(&x, qkv, Layout::OutIn, Some(qkv_bias), None)?;
    let (mixed, log_sum) = pass.attention(block, &qkv)?;
    let add = |drop, x: &_, w: &_, bias: &_, to: &_| {
        let at = Layout::OutIn;
        pass.linear(drop, to, |residual| device.linear(x, w, at, Some(bias), residual))
    };
    let sum_1 = add(drop_out, &mixed, out, out_bias, &x)?;
    let (mid, stats_1) = device.layer_norm(&sum_1, norm_1, norm_1_bias, EPSILON)?;

    let fc = device.linear(&mid, fc, Layout::OutIn, Some(fc_bias), None)?;
    let gelu = device.activation(&fc, Activation::Gelu)?;
    let sum_2 = add(drop_mlp, &gelu, proj, proj_bias, &mid)?;
    let (y, stats_2) = device.layer_norm(&sum_2, norm_2, norm_2_bias, EPSILON)?;

    let selected = Selected { x, qkv, mixed, log_sum, sum_1, sum_2 };
    Ok((y, Saved { selected, stats_1, mid, fc, stats_2 }))
}

/// Restores the saved activations of the forward pass, bit by bit.
pub(super) fn restore<D: Layers>(
    pass: &Pass<'_, D>,
    block: usize,
    w: &[D::Tensor; TENSORS],
    kept: KeptBlock<Saved<D::Tensor>, Selected<D::Tensor>, D::Tensor>,
) -> Result<Saved<D::Tensor>> {
    let from_input = |x| Ok(forward(pass, block, w, x)?.1);
    kept.restore(|dear| restore_dear(pass.device, w, dear), from_input)
}

fn restore_dear<D: Layers>(
    device: &D,
    w: &[D::Tensor; TENSORS],
    selected: Selected<D::Tensor>,
) -> Result<Saved<D::Tensor>> {
    let [_, _, _, _, norm_1, norm_1_bias, fc, fc_bias, _, _, norm_2, norm_2_bias] = w;
    let (mid, stats_1) = device.layer_norm(&selected.sum_1, norm_1, norm_1_bias, EPSILON)?;
    let fc = device.linear(&mid, fc, Layout::OutIn, Some(fc_bias), None)?;
    let (_, stats_2) = device.layer_norm(&selected.sum_2, norm_2, norm_2_bias, EPSILON)?;
    Ok(Saved { selected, stats_1, mid, fc, stats_2 })
}

/// Computes the gradient of the input from that of the output.
pub(super) fn backward_input<D: Layers>(
    pass: &Pass<'_, D>,
    block: usize,
    w: &[D::Tensor; TENSORS],
    saved: Saved<D::Tensor>,
    dy: D::Tensor,
) -> Result<(D::Tensor, Deferred<D::Tensor>)> {
    let [qkv_w, _, out, _, norm_1, _, fc_w, _, proj, _, norm_2, _] = w;
    let (device, [drop_out, drop_mlp]) = (pass.device, projections(block));
    let linear_dx = |dy, w| device.linear_dx(dy, w, Layout::OutIn);

    let Saved { selected, stats_1, mid, fc, stats_2 } = saved;
    let Selected { x, qkv, mixed, log_sum, sum_1, sum_2 } = selected;
    let d_sum_2 = device.layer_norm_dx(&dy, &sum_2, &stats_2, norm_2, None)?;
    let d_mlp = pass.dropped(drop_mlp, &d_sum_2)?;
    let d_gelu = linear_dx(&d_mlp, proj)?;
    let (d_fc, gelu) = device.activation_dx(&d_gelu, &fc, Activation::Gelu)?;
    let mut d_mid = linear_dx(&d_fc, fc_w)?;
    device.accumulate(&mut d_mid, &d_sum_2)?;

    let d_sum_1 = device.layer_norm_dx(&d_mid, &sum_1, &stats_1, norm_1, None)?;
    let d_out = pass.dropped(drop_out, &d_sum_1)?;
    let d_mixed = linear_dx(&d_out, out)?;
    let d_qkv = pass.attention_dx(block, &d_mixed, &qkv, &mixed, &log_sum)?;
    let mut dx = linear_dx(&d_qkv, qkv_w)?;
    device.accumulate(&mut dx, &d_sum_1)?;

    let deferred = Deferred {
        qkv: Linear { x, dy: d_qkv }.into(),
        out: Linear { x: mixed, dy: d_out }.into(),
        norm_1: Norm { dy: d_mid, x: sum_1, stats: stats_1 },
        up: Linear { x: mid, dy: d_fc }.into(),
        down: Linear { x: gelu, dy: d_mlp }.into(),
        norm_2: Norm { dy, x: sum_2, stats: stats_2 },
    };
    Ok((dx, deferred))
}

pub(super) fn backward_weight<D: Layers>(
    device: &D,
    deferred: Deferred<D::Tensor>,
    into: &mut [D::Tensor; TENSORS],
) -> Result<()> {
    let [
        qkv,
        qkv_bias,
        out,
        out_bias,
        norm_1,
        norm_1_bias,
        fc,
        fc_bias,
        proj,
        proj_bias,
        norm_2,
        norm_2_bias,
    ] = into;
    let at = Layout::OutIn;
    deferred.norm_2.add(device, norm_2, norm_2_bias)?;
    deferred.down.linear.add(device, at, proj, Some(proj_bias))?;
    deferred.up.linear.add(device, at, fc, Some(fc_bias))?;
    deferred.norm_1.add(device, norm_1, norm_1_bias)?;
    deferred.out.linear.add(device, at, out, Some(out_bias))?;
    deferred.qkv.linear.add(device, at, qkv, Some(qkv_bias))
}
