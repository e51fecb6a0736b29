//! Attention of only the last rows of each sample, through attention of all rows.

use std::ops::Range;

use super::{Activation, Attend, Attention};
use crate::device::{Device, Result};

/// A log-sum-exp so large that every softmax weight becomes 0.
const NO_WEIGHT: f32 = 1e30;

/// Computes the results of all rows, and drops those of the rows before `first`.
pub(super) fn forward<D: Attend>(
    device: &D,
    qkv: &D::Tensor,
    first: usize,
    by: &Attention<'_>,
) -> Result<(D::Tensor, D::Tensor)> {
    let (out, log_sum) = device.attention(qkv, by)?;
    let last = |x| rows_of_samples(device, x, by.context, first..by.context);
    Ok((last(&out)?, last(&log_sum)?))
}

/// Gives earlier rows zero gradients and zero weights, so that their queries contribute nothing.
pub(super) fn backward<D: Attend>(
    device: &D,
    dy: &D::Tensor,
    qkv: &D::Tensor,
    (out, log_sum): (&D::Tensor, &D::Tensor),
    first: usize,
    by: &Attention<'_>,
) -> Result<D::Tensor> {
    if first == 0 {
        return device.attention_dx(dy, qkv, out, log_sum, by);
    }
    let n_samples = device.shape(qkv)[0] / by.context;
    let width = device.shape(dy)[1];
    // Converted to the type of activations, since joined tensors must have one type.
    let none = device.activation(&device.zeros(&[n_samples * first, width])?, Activation::Tanh)?;
    let weightless = n_samples * first * by.heads;
    let weightless =
        device.upload_vec(&[n_samples * first, by.heads], vec![NO_WEIGHT; weightless])?;
    let behind = |before, x| join_samples(device, &[before, x], n_samples);
    let (dy, out) = (behind(&none, dy)?, behind(&none, out)?);
    device.attention_dx(&dy, qkv, &out, &behind(&weightless, log_sum)?, by)
}

/// Returns `rows` of each sample of `x`, as a tensor of its own. Each sample has `context` rows.
pub fn rows_of_samples<D: Device>(
    device: &D,
    x: &D::Tensor,
    context: usize,
    rows: Range<usize>,
) -> Result<D::Tensor> {
    let n_samples = device.shape(x)[0] / context;
    let of_sample = |sample| device.rows(x, sample * context + rows.start, rows.len());
    let parts = (0..n_samples).map(of_sample).collect::<Result<Vec<_>>>()?;
    device.join(&parts.iter().collect::<Vec<_>>())
}

/// Joins parts sample by sample: its rows of the first part, then of the second, and so on.
pub fn join_samples<D: Device>(
    device: &D,
    parts: &[&D::Tensor],
    n_samples: usize,
) -> Result<D::Tensor> {
    let rows = |part: &D::Tensor, sample| {
        let of_sample = device.shape(part)[0] / n_samples;
        device.rows(part, sample * of_sample, of_sample)
    };
    let of_samples = (0..n_samples).flat_map(|sample| parts.iter().map(move |part| (part, sample)));
    let rows = of_samples.map(|(part, sample)| rows(part, sample)).collect::<Result<Vec<_>>>()?;
    device.join(&rows.iter().collect::<Vec<_>>())
}
