//! Linear layers: one matrix product each, added to bias and residual.

use std::mem::MaybeUninit;

use candle_core::{Result, Tensor};
use chimera_core::layers::Layout;

use super::Operands;
use super::memory::{Output, update, values};
use super::products::matmul::matmul;
use super::products::matrix::Matrix;
use super::{Piece, rows_per_piece, run_all, sums};

pub(crate) fn forward(
    operands: Operands,
    x: &Tensor,
    w: &Tensor,
    layout: Layout,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let (rows, inputs) = x.dims2()?;
    let bias = bias.map(values).transpose()?;
    let residual = residual.map(values).transpose()?;
    let outputs = match layout {
        Layout::InOut => w.dims2()?.1,
        Layout::OutIn => w.dims2()?.0,
    };
    let mut y = Output::new(rows * outputs);
    let add = begin(y.slots(), outputs, bias.as_deref(), residual.as_deref());
    let (x, w) = (values(x)?, values(w)?);
    let x = Matrix::new(&x, rows, inputs, inputs);
    let w = in_out(&w, layout, inputs, outputs);
    // SAFETY: `y` is fresh, as large as the product, and initialised if it is added to.
    unsafe { matmul(operands, y.place().at(0), outputs, add, 1.0, x, w) };
    // SAFETY: the product wrote every element.
    unsafe { y.written((rows, outputs)) }
}

pub(crate) fn backward_input(
    operands: Operands,
    dy: &Tensor,
    w: &Tensor,
    layout: Layout,
) -> Result<Tensor> {
    let (rows, outputs) = dy.dims2()?;
    let inputs = w.elem_count() / outputs;
    let (dy, w) = (values(dy)?, values(w)?);
    let dy = Matrix::new(&dy, rows, outputs, outputs);
    let mut dx = Output::new(rows * inputs);
    let w = in_out(&w, layout, inputs, outputs);
    // SAFETY: `dx` is fresh and as large as the product.
    unsafe { matmul(operands, dx.place().at(0), inputs, false, 1.0, dy, w.t()) };
    // SAFETY: the product wrote every element.
    unsafe { dx.written((rows, inputs)) }
}

pub(crate) fn backward_weight(
    operands: Operands,
    x: &Tensor,
    dy: &Tensor,
    layout: Layout,
    dw: &Tensor,
    d_bias: Option<&Tensor>,
) -> Result<()> {
    let (rows, inputs) = x.dims2()?;
    let outputs = dy.dims2()?.1;
    let (x, dy) = (values(x)?, values(dy)?);
    let x = Matrix::new(&x, rows, inputs, inputs);
    let d = Matrix::new(&dy, rows, outputs, outputs);
    let (down, across, width) = match layout {
        Layout::InOut => (x, d, outputs),
        Layout::OutIn => (d, x, inputs),
    };
    update(dw, |dw| {
        assert_eq!(dw.len(), inputs * outputs);
        // SAFETY: `dw` is as large as the product, initialised and borrowed mutably.
        unsafe { matmul(operands, dw.as_mut_ptr(), width, true, 1.0, down.t(), across) };
        Ok(())
    })?;
    match d_bias {
        Some(d_bias) => update(d_bias, |d_bias| {
            sums::add_columns(d_bias, &dy);
            Ok(())
        }),
        None => Ok(()),
    }
}

/// Returns `w` as an `inputs x outputs` matrix.
fn in_out(w: &[f32], layout: Layout, inputs: usize, outputs: usize) -> Matrix<'_> {
    match layout {
        Layout::InOut => Matrix::new(w, inputs, outputs, outputs),
        Layout::OutIn => Matrix::new(w, outputs, inputs, inputs).t(),
    }
}

/// Writes `bias + residual` to `y`. Returns false, and leaves `y` as it was, if there is neither.
pub(super) fn begin(
    y: &mut [MaybeUninit<f32>],
    width: usize,
    bias: Option<&[f32]>,
    residual: Option<&[f32]>,
) -> bool {
    let n = rows_per_piece(width) * width;
    run_all(y.chunks_mut(n).enumerate().map(|(piece, y)| Begin {
        y,
        width,
        bias,
        residual: residual.map(|residual| &residual[piece * n..]),
    }));
    bias.is_some() || residual.is_some()
}

struct Begin<'a> {
    y: &'a mut [MaybeUninit<f32>],
    width: usize,
    bias: Option<&'a [f32]>,
    residual: Option<&'a [f32]>,
}

impl Piece for Begin<'_> {
    #[inline(always)]
    fn run(self) {
        let rows = self.y.chunks_exact_mut(self.width);
        match (self.bias, self.residual) {
            (None, None) => {}
            (Some(bias), None) => rows.for_each(|y| _ = y.write_copy_of_slice(bias)),
            (None, Some(residual)) => {
                self.y.write_copy_of_slice(&residual[..self.y.len()]);
            }
            (Some(bias), Some(residual)) => {
                for (y, residual) in rows.zip(residual.chunks_exact(self.width)) {
                    for ((y, x), b) in y.iter_mut().zip(residual).zip(bias) {
                        y.write(x + b);
                    }
                }
            }
        }
    }
}
