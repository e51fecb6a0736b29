//! BERT's pre-training heads: masked tokens, and whether the second segment follows the first.
//!
//! Both read few rows of the last block's output. A gather of rows is an embedding with them as its
//! table, and its gradient adds them back.

use chimera_engine::device::Result;
use chimera_engine::layers::{Activation, Layers, Layout};
use chimera_engine::stage::{Micro, Output};

use super::super::operands::{Linear, Norm};
use super::EPSILON;
use super::sample::SampleShape;
use crate::model::block::kept::tensors;
use crate::model::block::pass::Pass;

/// Weight tensors of the heads, except the decoder's matrix.
pub(super) const TENSORS: usize = 9;

tensors! {
    /// The saved activations.
    pub(super) Saved { selected: Selected<T> } {
        /// Output of the pooler before its tanh.
        pooled,
        transformed, gelu, stats, normed
    }
}

tensors! {
    /// The inputs of the heads: the first row of each sample, and the predicted rows.
    pub(super) Selected {} { first, predicted }
}

/// The weight gradients that are still to be computed.
#[derive(Debug)]
pub(super) struct Deferred<T> {
    pooler: Linear<T>,
    next: Linear<T>,
    transform: Linear<T>,
    norm: Norm<T>,
    decoder: Linear<T>,
}

impl<T> Deferred<T> {
    pub(super) fn tensors(&self) -> impl Iterator<Item = &T> {
        let linears = [&self.pooler, &self.next, &self.transform, &self.decoder];
        linears.into_iter().flat_map(Linear::tensors).chain(self.norm.tensors())
    }
}

pub(super) struct HeadWeights<'w, T> {
    pub(super) tensors: &'w [T; TENSORS],
    /// The decoder's matrix, `[vocab, hidden]`.
    pub(super) decoder: &'w T,
}

/// Picks the rows of the last block's output `x: [rows, hidden]` that the heads read.
pub(super) fn select<D: Layers>(
    device: &D,
    form: SampleShape,
    micro: &Micro<'_>,
    x: &D::Tensor,
) -> Result<Selected<D::Tensor>> {
    let nothing = device.zeros(&[1, device.shape(x)[1]])?;
    let gather = |rows: Vec<u32>| device.embedding(&rows, 1, x, &nothing);
    Ok(Selected {
        first: gather(form.first_rows(micro))?,
        predicted: gather(form.predicted(micro))?,
    })
}

/// Computes the saved activations from the rows that the heads read.
pub(super) fn restore<D: Layers>(
    device: &D,
    w: &HeadWeights<'_, D::Tensor>,
    selected: Selected<D::Tensor>,
) -> Result<Saved<D::Tensor>> {
    let [pooler, pooler_bias, _, _, transform, transform_bias, gain, bias, _] = w.tensors;
    let pooled = device.linear(&selected.first, pooler, Layout::OutIn, Some(pooler_bias), None)?;
    let at = Layout::OutIn;
    let transformed =
        device.linear(&selected.predicted, transform, at, Some(transform_bias), None)?;
    let gelu = device.activation(&transformed, Activation::Gelu)?;
    let (normed, stats) = device.layer_norm(&gelu, gain, bias, EPSILON)?;
    Ok(Saved { selected, pooled, transformed, gelu, stats, normed })
}

/// Returns the loss and the gradient of the predictions' logits; without targets, these logits.
pub(super) fn output<D: Layers>(
    device: &D,
    w: &HeadWeights<'_, D::Tensor>,
    form: SampleShape,
    micro: &Micro<'_>,
    saved: &Saved<D::Tensor>,
) -> Result<Output<D::Tensor>> {
    let bias = &w.tensors[TENSORS - 1];
    let logits = device.linear(&saved.normed, w.decoder, Layout::OutIn, Some(bias), None)?;
    if micro.target.is_empty() {
        return Ok(Output::Activation(logits));
    }
    let (ids, _) = form.targets(micro);
    let (mut loss, grad) = device.cross_entropy(logits, &ids, micro.loss_scale)?;
    let next =
        follow(device, w, form, micro, &device.activation(&saved.pooled, Activation::Tanh)?)?;
    device.accumulate(&mut loss, &next.0)?;
    Ok(Output::Loss { loss, grad })
}

/// Returns loss and gradient of the classes of `pooled: [samples, hidden]`. They are so small that
/// the backward pass recomputes them: an [`Output`] has room for one gradient.
fn follow<D: Layers>(
    device: &D,
    w: &HeadWeights<'_, D::Tensor>,
    form: SampleShape,
    micro: &Micro<'_>,
    pooled: &D::Tensor,
) -> Result<(D::Tensor, D::Tensor)> {
    let [_, _, next, next_bias, ..] = w.tensors;
    let logits = device.linear(pooled, next, Layout::OutIn, Some(next_bias), None)?;
    let (_, classes) = form.targets(micro);
    // The mean over samples, which all have the same number of predictions.
    device.cross_entropy(logits, &classes, micro.loss_scale * form.predictions as f64)
}

/// Computes the gradient of the last block's output from that of the logits.
pub(super) fn backward_input<D: Layers>(
    pass: &Pass<'_, D>,
    w: &HeadWeights<'_, D::Tensor>,
    form: SampleShape,
    micro: &Micro<'_>,
    saved: Saved<D::Tensor>,
    dy: D::Tensor,
) -> Result<(D::Tensor, Deferred<D::Tensor>)> {
    let device = pass.device;
    let [pooler, _, next, _, transform, _, gain, _, _] = w.tensors;
    let linear_dx = |dy, w| device.linear_dx(dy, w, Layout::OutIn);
    let Saved { selected, pooled, transformed, gelu, stats, normed } = saved;
    let Selected { first, predicted } = selected;

    let d_normed = linear_dx(&dy, w.decoder)?;
    let d_gelu = device.layer_norm_dx(&d_normed, &gelu, &stats, gain, None)?;
    let (d_transformed, _) = device.activation_dx(&d_gelu, &transformed, Activation::Gelu)?;
    let d_predicted = linear_dx(&d_transformed, transform)?;

    let tanh = device.activation(&pooled, Activation::Tanh)?;
    let (_, d_classes) = follow(device, w, form, micro, &tanh)?;
    let (d_pooled, _) =
        device.activation_dx(&linear_dx(&d_classes, next)?, &pooled, Activation::Tanh)?;
    let d_first = linear_dx(&d_pooled, pooler)?;

    let n_rows = form.first_rows(micro).len() * form.sequence;
    let hidden = device.shape(&d_first)[1];
    let (mut dx, mut nothing) = (device.zeros(&[n_rows, hidden])?, device.zeros(&[1, hidden])?);
    device.embedding_dw(&form.predicted(micro), 1, &d_predicted, &mut dx, &mut nothing)?;
    device.embedding_dw(&form.first_rows(micro), 1, &d_first, &mut dx, &mut nothing)?;

    let deferred = Deferred {
        pooler: Linear { x: first, dy: d_pooled },
        next: Linear { x: tanh, dy: d_classes },
        transform: Linear { x: predicted, dy: d_transformed },
        norm: Norm { dy: d_normed, x: gelu, stats },
        decoder: Linear { x: normed, dy },
    };
    Ok((dx, deferred))
}

/// Adds all gradients except the decoder matrix's to `into`, and returns that one's operands.
pub(super) fn backward_weight<D: Layers>(
    device: &D,
    deferred: Deferred<D::Tensor>,
    into: &mut [D::Tensor; TENSORS],
) -> Result<Linear<D::Tensor>> {
    let [pooler, pooler_bias, next, next_bias, transform, transform_bias, gain, bias, _] = into;
    let at = Layout::OutIn;
    deferred.pooler.add(device, at, pooler, Some(pooler_bias))?;
    deferred.next.add(device, at, next, Some(next_bias))?;
    deferred.transform.add(device, at, transform, Some(transform_bias))?;
    deferred.norm.add(device, gain, bias)?;
    Ok(deferred.decoder)
}
