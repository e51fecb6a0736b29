//! Words, positions and segments, their sum normalised.

use super::super::operands::Norm;
use super::super::pass::{EMBEDDED, Pass};
use super::EPSILON;
use super::sample::Form;
use crate::kernels::{Kernels, Layout, Result};
use crate::stage::Micro;

/// Weight tensors of the embedding: three tables, and a norm.
pub(super) const TENSORS: usize = 5;

/// What the backward pass needs.
#[derive(Debug)]
pub(super) struct Saved<T> {
    sum: T,
    stats: T,
}

/// The weight gradients that are still to be computed.
#[derive(Debug)]
pub(super) struct Deferred<T> {
    norm: Norm<T>,
    d_sum: T,
}

impl<T> Saved<T> {
    /// Applies `f` to each tensor.
    pub(super) fn map<U>(&self, mut f: impl FnMut(&T) -> Result<U>) -> Result<Saved<U>> {
        Ok(Saved { sum: f(&self.sum)?, stats: f(&self.stats)? })
    }

    /// What selective recomputation keeps: the sum.
    pub(super) fn select(self) -> T {
        self.sum
    }
}

impl<T> Deferred<T> {
    /// All tensors.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &T> {
        self.norm.tensors().into_iter().chain([&self.d_sum])
    }
}

/// The first block's input, `[rows, hidden]`.
pub(super) fn forward<K: Kernels>(
    pass: &Pass<'_, K>,
    w: &[K::Tensor; TENSORS],
    form: Form,
    micro: &Micro<'_>,
) -> Result<(K::Tensor, Saved<K::Tensor>)> {
    let [words, positions, segments, gain, bias] = w;
    let k = pass.kernels;
    let sum = k.embedding(&form.ids(micro), form.sequence, words, positions)?;
    // Two rows: a product with ones and zeros is as good as a look-up.
    let sum = k.linear(&columns(k, form, micro)?, segments, Layout::InOut, None, Some(&sum))?;
    let (normed, stats) = k.layer_norm(&sum, gain, bias, EPSILON)?;
    Ok((pass.dropped(EMBEDDED, &normed)?, Saved { sum, stats }))
}

/// What the forward pass saved, to the bit.
pub(super) fn restore<K: Kernels>(
    k: &K,
    w: &[K::Tensor; TENSORS],
    sum: K::Tensor,
) -> Result<Saved<K::Tensor>> {
    let [_, _, _, gain, bias] = w;
    let (_, stats) = k.layer_norm(&sum, gain, bias, EPSILON)?;
    Ok(Saved { sum, stats })
}

/// From the gradient of the first block's input to that of the sum.
pub(super) fn backward_input<K: Kernels>(
    pass: &Pass<'_, K>,
    w: &[K::Tensor; TENSORS],
    saved: Saved<K::Tensor>,
    dy: K::Tensor,
) -> Result<Deferred<K::Tensor>> {
    let [_, _, _, gain, _] = w;
    let dy = pass.dropped(EMBEDDED, &dy)?;
    let d_sum = pass.kernels.layer_norm_dx(&dy, &saved.sum, &saved.stats, gain, None)?;
    Ok(Deferred { norm: Norm { dy, x: saved.sum, stats: saved.stats }, d_sum })
}

/// Adds the gradients of the weights to `into`.
pub(super) fn backward_weight<K: Kernels>(
    k: &K,
    form: Form,
    micro: &Micro<'_>,
    deferred: Deferred<K::Tensor>,
    into: &mut [K::Tensor; TENSORS],
) -> Result<()> {
    let [words, positions, segments, gain, bias] = into;
    let Deferred { norm, d_sum } = deferred;
    norm.add(k, gain, bias)?;
    k.linear_dw(&columns(k, form, micro)?, &d_sum, Layout::InOut, segments, None)?;
    k.embedding_dw(&form.ids(micro), form.sequence, &d_sum, words, positions)
}

/// `[rows, 2]`: the column of the row's segment is 1.
fn columns<K: Kernels>(k: &K, form: Form, micro: &Micro<'_>) -> Result<K::Tensor> {
    let columns = form.segments(micro);
    k.upload(&[columns.len() / 2, 2], &columns)
}
