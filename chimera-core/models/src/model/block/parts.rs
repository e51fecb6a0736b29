//! The tensors that a stage keeps: their size, and their parts.

use chimera_engine::device::Result;
use chimera_engine::layers::Layers;

/// Returns the device memory of tensors.
pub(crate) fn bytes<'t, D: Layers>(
    device: &D,
    tensors: impl IntoIterator<Item = &'t D::Tensor>,
) -> u64 {
    tensors.into_iter().map(|tensor| device.bytes(tensor)).sum()
}

/// Returns part `part` of `parts` of a tensor that has the same number of rows for every sample.
pub(crate) fn part<D: Layers>(
    device: &D,
    tensor: &D::Tensor,
    part: usize,
    parts: usize,
) -> Result<D::Tensor> {
    let rows = device.shape(tensor)[0];
    assert!(rows.is_multiple_of(parts), "{rows} rows do not divide into {parts} parts");
    let len = rows / parts;
    device.rows(tensor, part * len, len)
}
