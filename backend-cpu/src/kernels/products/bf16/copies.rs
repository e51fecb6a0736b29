//! Copies of operands, rounded to bf16 but held in f32.

use std::cell::Cell;

use super::super::matrix::Matrix;
use crate::kernels::{Piece, rows_per_piece, run_all};

thread_local! {
    /// The copies of this thread, kept between calls.
    static COPIES: Cell<[Vec<f32>; 2]> = const { Cell::new([Vec::new(), Vec::new()]) };
}

/// Calls `multiply` with rounded copies of both operands.
pub(crate) fn with_rounded(a: Matrix, b: Matrix, multiply: impl FnOnce(Matrix, Matrix)) {
    let [mut for_a, mut for_b] = COPIES.take();
    multiply(rounded(&mut for_a, a), rounded(&mut for_b, b));
    COPIES.set([for_a, for_b]);
}

/// Returns a rounded copy of a matrix in `scratch`, whose rows or columns are as consecutive as the
/// original's.
fn rounded<'a>(scratch: &'a mut Vec<f32>, matrix: Matrix) -> Matrix<'a> {
    let is_transposed = matrix.column_step != 1;
    let rows = if is_transposed { matrix.t() } else { matrix };
    let len = rows.rows * rows.columns;
    scratch.resize(len.max(scratch.len()), 0.0);
    let n = rows_per_piece(rows.columns);
    let pieces = scratch[..len].chunks_mut((n * rows.columns).max(1)).enumerate();
    run_all(pieces.map(|(nth, into)| RoundedRows { into, first: nth * n, matrix: rows }));
    let copy = Matrix::new(&scratch[..len], rows.rows, rows.columns, rows.columns);
    if is_transposed { copy.t() } else { copy }
}

/// Rows from `first` on.
struct RoundedRows<'a> {
    into: &'a mut [f32],
    first: usize,
    matrix: Matrix<'a>,
}

impl Piece for RoundedRows<'_> {
    #[inline(always)]
    fn run(self) {
        let RoundedRows { into, first, matrix } = self;
        for (row, into) in into.chunks_exact_mut(matrix.columns).enumerate() {
            let from = &matrix.data[(first + row) * matrix.row_step..][..matrix.columns];
            for (into, x) in into.iter_mut().zip(from) {
                *into = rounded_to_bf16(*x);
            }
        }
    }
}

/// Rounds to nearest, ties to even. Denormals become zero.
#[inline(always)]
fn rounded_to_bf16(x: f32) -> f32 {
    const UPPER: u32 = 0xffff_0000;
    const EXPONENT: u32 = 0x7f80_0000;
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & UPPER;
    let quiet = (bits | 0x0040_0000) & UPPER;
    let zero = bits & 0x8000_0000;
    let rounded = if x.is_nan() { quiet } else { nearest };
    f32::from_bits(if bits & EXPONENT == 0 { zero } else { rounded })
}
