//! The normalised sum of word, position and segment embeddings.

use chimera_engine::device::Result;
use chimera_engine::layers::{Layers, Layout};
use chimera_engine::stage::{Micro, Param};

use super::super::operands::{Linear, Norm, add_embedding};
use super::EPSILON;
use super::sample::SampleShape;
use crate::model::block::kept::tensors;
use crate::model::block::pass::{EMBEDDED, Pass};

/// Weight tensors of the embedding: three tables, and a norm.
pub(super) const TENSORS: usize = 5;

tensors! {
    /// The saved activations.
    pub(super) Saved { selected: Selected<T> } { stats }
}

tensors! {
    /// The part of [`Saved`] that selective recomputation keeps.
    pub(super) Selected {} { sum }
}

/// The weight gradients that are still to be computed.
#[derive(Debug)]
pub(super) struct Deferred<T> {
    norm: Norm<T>,
    d_sum: T,
}

impl<T> Deferred<T> {
    pub(super) fn tensors(&self) -> impl Iterator<Item = &T> {
        self.norm.tensors().into_iter().chain([&self.d_sum])
    }
}

/// Returns the first block's input, `[rows, hidden]`.
pub(super) fn forward<D: Layers>(
    pass: &Pass<'_, D>,
    w: &[D::Tensor; TENSORS],
    form: SampleShape,
    micro: &Micro<'_>,
) -> Result<(D::Tensor, Saved<D::Tensor>)> {
    let [words, positions, segments, gain, bias] = w;
    let device = pass.device;
    let sum = device.embedding(&form.ids(micro), form.sequence, words, positions)?;
    // With two segments, a product with ones and zeros is as good as a look-up.
    let sum =
        device.linear(&columns(device, form, micro)?, segments, Layout::InOut, None, Some(&sum))?;
    let (normed, stats) = device.layer_norm(&sum, gain, bias, EPSILON)?;
    Ok((pass.dropped(EMBEDDED, &normed)?, Saved { selected: Selected { sum }, stats }))
}

/// Restores the saved activations of the forward pass, bit by bit.
pub(super) fn restore<D: Layers>(
    device: &D,
    w: &[D::Tensor; TENSORS],
    selected: Selected<D::Tensor>,
) -> Result<Saved<D::Tensor>> {
    let [_, _, _, gain, bias] = w;
    let (_, stats) = device.layer_norm(&selected.sum, gain, bias, EPSILON)?;
    Ok(Saved { selected, stats })
}

/// Computes the gradient of the sum from that of the first block's input.
pub(super) fn backward_input<D: Layers>(
    pass: &Pass<'_, D>,
    w: &[D::Tensor; TENSORS],
    saved: Saved<D::Tensor>,
    dy: D::Tensor,
) -> Result<Deferred<D::Tensor>> {
    let [_, _, _, gain, _] = w;
    let dy = pass.dropped(EMBEDDED, &dy)?;
    let Saved { selected: Selected { sum }, stats } = saved;
    let d_sum = pass.device.layer_norm_dx(&dy, &sum, &stats, gain, None)?;
    Ok(Deferred { norm: Norm { dy, x: sum, stats }, d_sum })
}

pub(super) fn backward_weight<D: Layers>(
    device: &D,
    form: SampleShape,
    micro: &Micro<'_>,
    deferred: Deferred<D::Tensor>,
    params: &[Param],
    into: &mut [D::Tensor; TENSORS],
) -> Result<()> {
    let [words, positions, segments, gain, bias] = into;
    let Deferred { norm, d_sum } = deferred;
    norm.add(device, gain, bias)?;
    let of_segments = Linear { x: columns(device, form, micro)?, dy: d_sum.clone() };
    of_segments.add(device, Layout::InOut, segments, None)?;
    add_embedding(
        device,
        (&form.ids(micro), form.sequence),
        &d_sum,
        &params[..2],
        [words, positions],
    )
}

/// Returns `[rows, 2]`, with a 1 in the column of the row's segment.
fn columns<D: Layers>(device: &D, form: SampleShape, micro: &Micro<'_>) -> Result<D::Tensor> {
    let columns = form.segments(micro);
    device.upload(&[columns.len() / 2, 2], &columns)
}
