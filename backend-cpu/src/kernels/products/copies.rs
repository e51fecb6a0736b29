//! Products of copies of operands: copies rounded to bf16 and kept as f32, for processors whose FMA
//! is the fastest way to multiply them, and copies in a layout that suits the cache better.

use std::cell::Cell;
use std::ops::Range;

use super::matmul::Product;
use super::matrix::Matrix;
use crate::kernels::math::LANES;
use crate::kernels::{Piece, rows_per_piece, run_all};

/// Elements of a part of an operand that is copied at once, 4 MiB.
const PART: usize = 1 << 20;
/// The longest part of the summed dimension.
const DEPTH: usize = 4096;
/// The least rows of a part of the left operand. With fewer, packing the right one takes much of the
/// time.
const ROWS: usize = 512;

thread_local! {
    /// Copied elements of both operands, kept between calls.
    static COPIES: Cell<[Vec<f32>; 2]> = const { Cell::new([Vec::new(), Vec::new()]) };
}

impl Product<'_> {
    /// Multiplies rounded operands. Parts depend on the shapes only, so results have the same bits
    /// for any number of threads.
    ///
    /// # Safety
    ///
    /// As for [`matmul`](super::matmul::matmul).
    pub(super) unsafe fn run_rounded(self, threads: usize) {
        let (rows, depth, columns) = (self.a.rows, self.a.columns, self.b.columns);
        if depth == 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.run_fastest(threads) };
        }
        let [mut left, mut right] = COPIES.take().map(Copied::<true>::to);
        for deep in parts(depth, DEPTH) {
            let most = PART / deep.len();
            for across in parts(columns, most) {
                for down in parts(rows, most.max(ROWS)) {
                    let a = left.part(self.a, [&down, &deep]);
                    let b = right.part(self.b, [&deep, &across]);
                    let into = self.into.wrapping_add(down.start * self.row_step + across.start);
                    let add = self.add || deep.start > 0;
                    // SAFETY: a part of the result. It is initialised if the caller's is, or since
                    // an earlier part of the sums was written to it.
                    unsafe { Product { into, add, a, b, ..self }.run_fastest(threads) };
                }
            }
        }
        COPIES.set([left.data, right.data]);
    }

    /// Multiplies by a copy of the right operand, some columns at a time.
    ///
    /// # Safety
    ///
    /// As for [`matmul`](super::matmul::matmul).
    pub(super) unsafe fn run_copied(self, threads: usize) {
        let [left, right] = COPIES.take();
        let mut right = Copied::<false>::to(right);
        let depth = self.b.rows;
        for across in parts(self.b.columns, (PART / depth.max(1)).max(LANES)) {
            let into = self.into.wrapping_add(across.start);
            let b = right.part(self.b, [&(0..depth), &across]);
            // SAFETY: columns of the result.
            unsafe { Product { into, b, ..self }.run(threads) };
        }
        COPIES.set([left, right.data]);
    }
}

/// Cuts `0..n` into parts of `most`.
fn parts(n: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..n).step_by(most).map(move |start| start..n.min(start + most))
}

/// The copy of a part of a matrix whose rows or columns are consecutive, in the same order.
struct Copied<const ROUND: bool> {
    data: Vec<f32>,
    /// The rows and columns of the part.
    of: Option<[Range<usize>; 2]>,
}

impl<const ROUND: bool> Copied<ROUND> {
    fn to(data: Vec<f32>) -> Self {
        Self { data, of: None }
    }

    /// Returns a part of the matrix, which is copied unless it was the last one too.
    fn part(&mut self, matrix: Matrix<'_>, of: [&Range<usize>; 2]) -> Matrix<'_> {
        let [rows, columns] = of.map(Range::clone);
        let matrix = matrix.part(rows.clone(), columns.clone());
        let is_turned = matrix.column_step != 1;
        let from = if is_turned { matrix.t() } else { matrix };
        // Rows a power of two apart would fall on the same few cache lines.
        let step = from.columns + if from.columns.is_multiple_of(256) { LANES } else { 0 };
        let of = Some([rows, columns]);
        if self.of != of {
            self.of = of;
            self.data.resize(self.data.len().max(from.rows * step), 0.0);
            let n = rows_per_piece(step);
            let pieces = self.data[..from.rows * step].chunks_mut(n * step).enumerate();
            run_all(pieces.map(|(nth, into)| CopiedRows::<ROUND> {
                into,
                step,
                first: nth * n,
                from,
            }));
        }
        let copy = Matrix::new(&self.data, from.rows, from.columns, step);
        if is_turned { copy.t() } else { copy }
    }
}

/// Rows from `first` on, `step` apart.
struct CopiedRows<'a, const ROUND: bool> {
    into: &'a mut [f32],
    step: usize,
    first: usize,
    from: Matrix<'a>,
}

impl<const ROUND: bool> Piece for CopiedRows<'_, ROUND> {
    #[inline(always)]
    fn run(self) {
        let CopiedRows { into, step, first, from } = self;
        for (nth, into) in into.chunks_exact_mut(step).enumerate() {
            let row = &from.data[(first + nth) * from.row_step..][..from.columns];
            for (into, x) in into.iter_mut().zip(row) {
                *into = if ROUND { to_bf16(*x) } else { *x };
            }
        }
    }
}

/// Rounds to bf16: to nearest, ties to even. Denormals become zero.
#[inline(always)]
fn to_bf16(x: f32) -> f32 {
    const UPPER: u32 = 0xffff_0000;
    const EXPONENT: u32 = 0x7f80_0000;
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & UPPER;
    let quiet = (bits | 0x0040_0000) & UPPER;
    let zero = bits & 0x8000_0000;
    let rounded = if x.is_nan() { quiet } else { nearest };
    f32::from_bits(if bits & EXPONENT == 0 { zero } else { rounded })
}
