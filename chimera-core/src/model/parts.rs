//! The tensors that a stage keeps: their size, and their parts.

use crate::kernels::{Kernels, Result};

/// Device memory of tensors.
pub(super) fn bytes<'t, K: Kernels>(
    k: &K,
    tensors: impl IntoIterator<Item = &'t K::Tensor>,
) -> u64 {
    tensors.into_iter().map(|tensor| k.bytes(tensor)).sum()
}

/// Part `part` of `parts` of a tensor that has as many rows of every sample.
pub(super) fn part<K: Kernels>(
    k: &K,
    tensor: &K::Tensor,
    part: usize,
    parts: usize,
) -> Result<K::Tensor> {
    let rows = k.shape(tensor)[0];
    assert!(rows.is_multiple_of(parts), "{rows} rows do not divide into {parts} parts");
    let len = rows / parts;
    k.rows(tensor, part * len, len)
}
