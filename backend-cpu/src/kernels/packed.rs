//! Linear layers with packed matrices. Some rows of a matrix are unpacked to f32 at a time, and
//! multiplied while they are in the cache.

use std::cell::Cell;

use candle_core::{CpuStorage, DType, Device, Result, Storage, Tensor, bail};
use chimera_core::device::{Dtype, Elements, Packed, PackedMap};
use chimera_core::layers::Layout;

use super::linear::{self, begin};
use super::math::LANES;
use super::memory::{Output, values};
use super::products::matmul::matmul;
use super::products::matrix::Matrix;
use super::products::operands::Operands;
use super::{Piece, rows_per_piece, run_all};

/// Elements unpacked at once, 4 MiB: many outputs, as the left operand is packed for each part.
const PANEL: usize = 1 << 20;

thread_local! {
    /// Unpacked elements of this thread, kept between calls.
    static UNPACKED: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Returns a tensor of the elements in words.
pub(crate) fn tensor(shape: &[usize], dtype: Dtype, words: Vec<f32>) -> Result<Tensor> {
    if dtype != Dtype::Packed {
        let values = dtype.to_f32(words, shape.iter().product());
        return Tensor::from_vec(values, shape, &Device::Cpu);
    }
    let bytes = Elements { dtype, words }.bytes();
    if Packed::read(&bytes).is_none() {
        bail!("not a packed matrix");
    }
    let n = bytes.len();
    Tensor::from_vec(bytes, n, &Device::Cpu)
}

/// Returns true if a tensor is a packed matrix.
pub(crate) fn is_packed(tensor: &Tensor) -> bool {
    tensor.dtype() == DType::U8
}

/// Returns the extents of a tensor or of a packed matrix.
pub(crate) fn shape(tensor: &Tensor) -> Vec<usize> {
    let packed = is_packed(tensor).then(|| read(tensor, |packed| Ok(packed.matrix.shape.into())));
    packed.and_then(Result::ok).unwrap_or_else(|| tensor.dims().to_vec())
}

/// Returns the type of the elements of a tensor.
pub(crate) fn dtype(tensor: &Tensor) -> Dtype {
    if is_packed(tensor) { Dtype::Packed } else { Dtype::F32 }
}

/// Appends the elements of a tensor as words.
pub(crate) fn copy_words(tensor: &Tensor, into: &mut Vec<f32>) -> Result<()> {
    if !is_packed(tensor) {
        return copy_into(tensor, into);
    }
    with_bytes(tensor, |bytes| {
        into.extend(Dtype::words(bytes));
        Ok(())
    })
}

/// Appends the values of a tensor or of a packed matrix, row-major.
pub(crate) fn copy_into(tensor: &Tensor, into: &mut Vec<f32>) -> Result<()> {
    if is_packed(tensor) {
        into.extend(read(tensor, |packed| Ok(packed.values()))?);
    } else {
        into.extend_from_slice(&values(&tensor.contiguous()?)?);
    }
    Ok(())
}

/// Returns the outputs of a layer, whose matrix may be packed.
pub(crate) fn forward(
    operands: Operands,
    x: &Tensor,
    w: &Tensor,
    layout: Layout,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    if !is_packed(w) {
        return linear::forward(operands, x, w, layout, bias, residual);
    }
    let bias = bias.map(values).transpose()?;
    let residual = residual.map(values).transpose()?;
    let (rows, inputs) = x.dims2()?;
    let x = values(x)?;
    let x = Matrix::new(&x, rows, inputs, inputs);
    read(w, |w| {
        let outputs = w.maps.iter().map(|map| map.outputs).sum();
        let mut y = Output::new(rows * outputs);
        let add = begin(y.slots(), outputs, bias.as_deref(), residual.as_deref());
        for_panels(w, |first, panel| {
            let place = y.place().at(first);
            // SAFETY: columns of `y`, which is fresh, and initialised if it is added to.
            unsafe { matmul(operands, place, outputs, add, 1.0, x, panel.t()) };
        });
        // SAFETY: the products wrote every element.
        unsafe { y.written((rows, outputs)) }
    })
}

/// Returns the gradient of a layer's input; the matrix may be packed.
pub(crate) fn backward_input(
    operands: Operands,
    dy: &Tensor,
    w: &Tensor,
    layout: Layout,
) -> Result<Tensor> {
    if !is_packed(w) {
        return linear::backward_input(operands, dy, w, layout);
    }
    let (rows, outputs) = dy.dims2()?;
    let dy = values(dy)?;
    let dy = Matrix::new(&dy, rows, outputs, outputs);
    read(w, |w| {
        let inputs = w.maps.first().map_or(0, |map| map.inputs);
        let mut dx = Output::new(rows * inputs);
        for_panels(w, |first, panel| {
            let (into, add) = (dx.place().at(0), first > 0);
            let dy = dy.columns(first..first + panel.rows);
            // SAFETY: `dx` is fresh and as large as the product, and the first one initialises it.
            unsafe { matmul(operands, into, inputs, add, 1.0, dy, panel) };
        });
        // SAFETY: the products wrote every element.
        unsafe { dx.written((rows, inputs)) }
    })
}

/// Calls `multiply` with some outputs of a matrix at a time, unpacked, and the first of them.
fn for_panels(w: &Packed<'_>, mut multiply: impl FnMut(usize, Matrix)) {
    let mut scratch = UNPACKED.take();
    let mut first = 0;
    for map in w.maps.iter().filter(|map| map.outputs > 0) {
        // Rows that lie a multiple of 4 KiB apart would share lines of the first-level cache.
        let step = map.inputs + LANES;
        let n = (PANEL / step).clamp(LANES, map.outputs.max(LANES));
        for top in (0..map.outputs).step_by(n) {
            let rows = n.min(map.outputs - top);
            scratch.resize(rows * step, 0.0);
            unpack(map, top, step, &mut scratch);
            multiply(first + top, Matrix::new(&scratch, rows, map.inputs, step));
        }
        first += map.outputs;
    }
    UNPACKED.set(scratch);
}

/// Unpacks rows from `top` on, which lie `step` apart.
fn unpack(map: &PackedMap<'_>, top: usize, step: usize, into: &mut [f32]) {
    let n = rows_per_piece(step);
    let pieces = into.chunks_mut(n * step).enumerate();
    run_all(pieces.map(|(nth, into)| Unpacked { map, top: top + nth * n, step, into }));
}

struct Unpacked<'a> {
    map: &'a PackedMap<'a>,
    top: usize,
    step: usize,
    into: &'a mut [f32],
}

impl Piece for Unpacked<'_> {
    #[inline(always)]
    fn run(self) {
        let inputs = self.map.inputs;
        for (row, into) in (self.top..).zip(self.into.chunks_exact_mut(self.step)) {
            self.map.unpack(row * inputs, &mut into[..inputs]);
        }
    }
}

/// Calls `f` with a packed matrix.
fn read<R>(tensor: &Tensor, f: impl FnOnce(&Packed<'_>) -> Result<R>) -> Result<R> {
    with_bytes(tensor, |bytes| match Packed::read(bytes) {
        Some(packed) => f(&packed),
        None => bail!("not a packed matrix"),
    })
}

fn with_bytes<R>(tensor: &Tensor, f: impl FnOnce(&[u8]) -> Result<R>) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(CpuStorage::U8(all)), Some((start, end))) => f(&all[start..end]),
        _ => bail!("not a packed matrix"),
    }
}
