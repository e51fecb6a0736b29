//! One transformer block, pre-norm, without biases but for queries, keys and values:
//! `mid = x + attention(norm(x))`, `y = mid + mlp(norm(mid))`.

use super::super::operands::{Linear, Norm};
use super::super::pass::{Pass, projections};
use crate::device::Result;
use crate::layers::{Activation, Layers, Layout, Rotary};

/// Weight tensors of a block, beside the bias of queries, keys and values, which is last where there is one.
pub(super) const TENSORS: usize = 6;

/// What the blocks of a stage have in common.
#[derive(Clone, Debug)]
pub(super) struct BlockForm<T> {
    /// Heads of queries and keys, which are turned.
    pub(super) turned: usize,
    pub(super) epsilon: f64,
    pub(super) activation: Activation,
    /// Cosines and sines of each position.
    pub(super) rotary: T,
}

/// What the backward pass needs. The MLP's gated activations are made again.
#[derive(Debug)]
pub(super) struct Saved<T> {
    selected: Selected<T>,
    stats_1: T,
    norm_1: T,
    stats_2: T,
    norm_2: T,
    gate_up: T,
}

/// The half of [`Saved`] that the other half is made from by the product into the MLP: what lies behind the attention,
/// and the inputs of both halves of the block.
#[derive(Debug)]
pub(super) struct Selected<T> {
    x: T,
    /// Queries and keys are turned.
    qkv: T,
    mixed: T,
    log_sum: T,
    mid: T,
}

/// The weight gradients that are still to be computed.
#[derive(Debug)]
pub(super) struct Deferred<T> {
    norm_1: Norm<T>,
    qkv: Linear<T>,
    out: Linear<T>,
    norm_2: Norm<T>,
    gate_up: Linear<T>,
    down: Linear<T>,
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
            gate_up: f(&self.gate_up)?,
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
        let norms = [&self.norm_1, &self.norm_2].into_iter().flat_map(Norm::tensors);
        let linears = [&self.qkv, &self.out, &self.gate_up, &self.down];
        norms.chain(linears.into_iter().flat_map(Linear::tensors))
    }
}

/// The weights of a block, and the bias of queries, keys and values if there is one.
fn weights<T>(w: &[T]) -> (&[T; TENSORS], Option<&T>) {
    let (w, bias) = w.split_first_chunk().expect("the weights of a block");
    (w, bias.first())
}

/// From `x: [rows, hidden]` to the output of block `block`, of the same shape.
pub(super) fn forward<D: Layers>(
    pass: &Pass<'_, D>,
    form: &BlockForm<D::Tensor>,
    block: usize,
    w: &[D::Tensor],
    x: D::Tensor,
) -> Result<(D::Tensor, Saved<D::Tensor>)> {
    let ([norm_1, qkv, out, norm_2, gate_up, down], qkv_bias) = weights(w);
    let (device, [drop_attn, drop_mlp]) = (pass.device, projections(block));
    let linear = |x, w, bias| device.linear(x, w, Layout::OutIn, bias, None);
    let add = |drop, x, w, to| pass.linear(drop, x, w, Layout::OutIn, None, to);

    let (norm_1, stats_1) = device.rms_norm(&x, norm_1, form.epsilon)?;
    let qkv = linear(&norm_1, qkv, qkv_bias)?;
    let qkv = device.rotary(&qkv, &form.rotary, form.rotary(false))?;
    let (mixed, log_sum) = pass.attention(block, &qkv)?;
    let mid = add(drop_attn, &mixed, out, &x)?;

    let (norm_2, stats_2) = device.rms_norm(&mid, norm_2, form.epsilon)?;
    let gate_up = linear(&norm_2, gate_up, None)?;
    let gated = device.gated(&gate_up, form.activation)?;
    let y = add(drop_mlp, &gated, down, &mid)?;

    let selected = Selected { x, qkv, mixed, log_sum, mid };
    Ok((y, Saved { selected, stats_1, norm_1, stats_2, norm_2, gate_up }))
}

/// What the forward pass saved, to the bit.
pub(super) fn restore<D: Layers>(
    device: &D,
    form: &BlockForm<D::Tensor>,
    w: &[D::Tensor],
    selected: Selected<D::Tensor>,
) -> Result<Saved<D::Tensor>> {
    let ([norm_1, _, _, norm_2, gate_up, _], _) = weights(w);
    let (norm_1, stats_1) = device.rms_norm(&selected.x, norm_1, form.epsilon)?;
    let (norm_2, stats_2) = device.rms_norm(&selected.mid, norm_2, form.epsilon)?;
    let gate_up = device.linear(&norm_2, gate_up, Layout::OutIn, None, None)?;
    Ok(Saved { selected, stats_1, norm_1, stats_2, norm_2, gate_up })
}

/// From the gradient of the output to that of the input.
pub(super) fn backward_input<D: Layers>(
    pass: &Pass<'_, D>,
    form: &BlockForm<D::Tensor>,
    block: usize,
    w: &[D::Tensor],
    saved: Saved<D::Tensor>,
    dy: D::Tensor,
) -> Result<(D::Tensor, Deferred<D::Tensor>)> {
    let ([norm_1, qkv_w, out, norm_2, gate_up, down], _) = weights(w);
    let (device, [drop_attn, drop_mlp]) = (pass.device, projections(block));
    let linear_dx = |dy, w| device.linear_dx(dy, w, Layout::OutIn);

    let Selected { x, qkv, mixed, log_sum, mid } = saved.selected;
    let d_mlp = pass.dropped(drop_mlp, &dy)?;
    let d_gated = linear_dx(&d_mlp, down)?;
    let (d_gate_up, gated) = device.gated_dx(&d_gated, &saved.gate_up, form.activation)?;
    let d_norm_2 = linear_dx(&d_gate_up, gate_up)?;
    let d_mid = device.rms_norm_dx(&d_norm_2, &mid, &saved.stats_2, norm_2, Some(&dy))?;

    let d_attn = pass.dropped(drop_attn, &d_mid)?;
    let d_mixed = linear_dx(&d_attn, out)?;
    let d_qkv = pass.attention_dx(block, &d_mixed, &qkv, &mixed, &log_sum)?;
    let d_qkv = device.rotary(&d_qkv, &form.rotary, form.rotary(true))?;
    let d_norm_1 = linear_dx(&d_qkv, qkv_w)?;
    let dx = device.rms_norm_dx(&d_norm_1, &x, &saved.stats_1, norm_1, Some(&d_mid))?;

    let deferred = Deferred {
        norm_1: Norm { dy: d_norm_1, x, stats: saved.stats_1 },
        qkv: Linear { x: saved.norm_1, dy: d_qkv },
        out: Linear { x: mixed, dy: d_attn },
        norm_2: Norm { dy: d_norm_2, x: mid, stats: saved.stats_2 },
        gate_up: Linear { x: saved.norm_2, dy: d_gate_up },
        down: Linear { x: gated, dy: d_mlp },
    };
    Ok((dx, deferred))
}

/// Adds the gradients of the weights to `into`.
pub(super) fn backward_weight<D: Layers>(
    device: &D,
    deferred: Deferred<D::Tensor>,
    into: &mut [D::Tensor],
) -> Result<()> {
    let (into, bias) = into.split_first_chunk_mut::<TENSORS>().expect("the weights of a block");
    let [norm_1, qkv, out, norm_2, gate_up, down] = into;
    let at = Layout::OutIn;
    deferred.down.add(device, at, down, None)?;
    deferred.gate_up.add(device, at, gate_up, None)?;
    deferred.norm_2.add_rms(device, norm_2)?;
    deferred.out.add(device, at, out, None)?;
    deferred.qkv.add(device, at, qkv, bias.first_mut())?;
    deferred.norm_1.add_rms(device, norm_1)
}

impl<T> BlockForm<T> {
    fn rotary(&self, backward: bool) -> Rotary {
        Rotary { heads: self.turned, backward }
    }
}
