//! Products of small f32 matrices without packing, for attention. Its operands are in the cache
//! already, and its summed dimension is as short as a head, so packing would cost as much as the
//! product.
//!
//! A tile of the result is in registers. Each row of the right operand is read as vectors, and
//! elements of the left one are broadcast. An element's sum goes through the summed dimension in
//! order, on every processor.

use std::mem::MaybeUninit;
use std::ptr;

use pulp::Simd;

use super::matrix::Matrix;

/// Rows of a tile. With two vectors across, its sums hide the latency of an addition; a tile of one
/// row has four vectors across.
const ROWS: usize = 8;
/// Rows of a tile on processors with 16 registers.
const FEW_ROWS: usize = 4;

/// Writes or adds `scale a b` to `into`, with rows `row_step` apart. Rows of `b` are contiguous.
///
/// # Safety
///
/// As for [`matmul`](super::matmul::matmul).
pub(crate) unsafe fn multiply(
    into: *mut f32,
    row_step: usize,
    add: bool,
    scale: f32,
    a: Matrix,
    b: Matrix,
) {
    assert!(a.columns == b.rows && b.column_step == 1, "the right operand has consecutive rows");
    let product = UnpackedProduct { into, row_step, add, scale, a, b };
    pulp::Arch::new().dispatch(product);
}

/// The arguments of [`multiply`], with the same safety contract.
#[derive(Clone, Copy)]
struct UnpackedProduct<'p> {
    into: *mut f32,
    row_step: usize,
    add: bool,
    scale: f32,
    a: Matrix<'p>,
    b: Matrix<'p>,
}

impl pulp::WithSimd for UnpackedProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (lanes, columns) = (S::F32_LANES, self.b.columns);
        let mut done = 0;
        if self.a.rows < FEW_ROWS {
            done = columns / (4 * lanes) * (4 * lanes);
            for left in (0..done).step_by(4 * lanes) {
                (0..self.a.rows).for_each(|top| self.tile::<S, 1, 4, false>(simd, top, left));
            }
        }
        let wide = columns / (2 * lanes) * (2 * lanes);
        for left in (done..wide).step_by(2 * lanes) {
            self.down::<S, 2, false>(simd, left);
        }
        let left = columns - wide;
        if left > lanes {
            self.down::<S, 2, true>(simd, wide);
        } else if left == lanes {
            self.down::<S, 1, false>(simd, wide);
        } else if left > 0 {
            self.down::<S, 1, true>(simd, wide);
        }
    }
}

impl UnpackedProduct<'_> {
    /// Computes all columns from `left` on of `VECTORS` vectors, the last not whole if `PARTIAL`.
    #[inline(always)]
    fn down<S: Simd, const VECTORS: usize, const PARTIAL: bool>(self, simd: S, left: usize) {
        let mut top = 0;
        if S::REGISTER_COUNT >= 32 {
            while top + ROWS <= self.a.rows {
                self.tile::<S, ROWS, VECTORS, PARTIAL>(simd, top, left);
                top += ROWS;
            }
        }
        while top + FEW_ROWS <= self.a.rows {
            self.tile::<S, FEW_ROWS, VECTORS, PARTIAL>(simd, top, left);
            top += FEW_ROWS;
        }
        while top < self.a.rows {
            self.tile::<S, 1, VECTORS, PARTIAL>(simd, top, left);
            top += 1;
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const DOWN: usize, const VECTORS: usize, const PARTIAL: bool>(
        self,
        simd: S,
        top: usize,
        left: usize,
    ) {
        let UnpackedProduct { a, b, .. } = self;
        let last = b.columns - left - (VECTORS - 1) * S::F32_LANES;
        let mut sums = [[simd.splat_f32s(0.0); VECTORS]; DOWN];
        let mut from = a.data.as_ptr().wrapping_add(top * a.row_step);
        let mut row = b.data.as_ptr().wrapping_add(left);
        for _ in 0..a.columns {
            let mut vectors = [simd.splat_f32s(0.0); VECTORS];
            for (v, vector) in vectors.iter_mut().enumerate() {
                let at = row.wrapping_add(v * S::F32_LANES);
                // SAFETY: the vector ends within the row of the operand.
                *vector = unsafe {
                    if PARTIAL && v + 1 == VECTORS {
                        simd.partial_load_f32s(std::slice::from_raw_parts(at, last))
                    } else {
                        ptr::read_unaligned(at.cast())
                    }
                };
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: an element of the operand.
                let x = simd.splat_f32s(unsafe { *from.wrapping_add(r * a.row_step) });
                for (sum, vector) in sums.iter_mut().zip(vectors) {
                    *sum = simd.mul_add_f32s(x, vector, *sum);
                }
            }
            from = from.wrapping_add(a.column_step);
            row = row.wrapping_add(b.row_step);
        }
        let scale = simd.splat_f32s(self.scale);
        for (r, sums) in sums.into_iter().enumerate() {
            for (v, sum) in sums.into_iter().enumerate() {
                let to =
                    self.into.wrapping_add((top + r) * self.row_step + left + v * S::F32_LANES);
                // SAFETY: elements that the caller lets this thread write, initialised if added to.
                unsafe {
                    if PARTIAL && v + 1 == VECTORS {
                        if !self.add {
                            to.cast::<MaybeUninit<f32>>().write_bytes(0, last);
                        }
                        let to = std::slice::from_raw_parts_mut(to, last);
                        let scaled = self.scaled(simd, sum, scale, simd.partial_load_f32s(to));
                        simd.partial_store_f32s(to, scaled);
                    } else {
                        let to = to.cast::<S::f32s>();
                        let there = if self.add { ptr::read_unaligned(to) } else { scale };
                        ptr::write_unaligned(to, self.scaled(simd, sum, scale, there));
                    }
                }
            }
        }
    }

    /// Scales a vector of sums, and adds `there` if the product is added.
    #[inline(always)]
    fn scaled<S: Simd>(self, simd: S, sum: S::f32s, scale: S::f32s, there: S::f32s) -> S::f32s {
        if self.add { simd.mul_add_f32s(sum, scale, there) } else { simd.mul_f32s(sum, scale) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes each element as a sum in the same order.
    fn plain(into: &mut [f32], row_step: usize, add: bool, scale: f32, a: Matrix, b: Matrix) {
        for i in 0..a.rows {
            for j in 0..b.columns {
                let mut sum = 0.0f32;
                for k in 0..a.columns {
                    let x = a.data[i * a.row_step + k * a.column_step];
                    sum = x.mul_add(b.data[k * b.row_step + j], sum);
                }
                let to = &mut into[i * row_step + j];
                *to = if add { sum.mul_add(scale, *to) } else { sum * scale };
            }
        }
    }

    #[test]
    fn every_shape_has_the_bits_of_plain_sums() {
        let values = |seed: u32, n: usize| {
            let value = |i: usize| (i as u32).wrapping_mul(2_654_435_761) ^ seed;
            (0..n).map(|i| value(i) as i32 as f32 / i32::MAX as f32).collect::<Vec<_>>()
        };
        for rows in [1, 3, 4, 8, 13, 64] {
            for columns in [1, 2, 8, 15, 16, 17, 24, 32, 40, 63, 70] {
                for depth in [1, 7, 32] {
                    let (a_step, b_step, step) = (rows.max(depth) + 3, columns + 5, columns + 2);
                    let (a, b) = (values(1, 80 * a_step), values(2, depth * b_step));
                    let b = Matrix::new(&b, depth, columns, b_step);
                    let straight = Matrix::new(&a, rows, depth, a_step);
                    let turned = Matrix::new(&a, depth, rows, a_step).t();
                    for (a, add) in [(straight, false), (turned, true), (straight, true)] {
                        let mut expected = values(3, rows * step);
                        let mut into = expected.clone();
                        plain(&mut expected, step, add, 0.3, a, b);
                        // SAFETY: `into` has the product's rows.
                        unsafe { multiply(into.as_mut_ptr(), step, add, 0.3, a, b) };
                        let same =
                            into.iter().zip(&expected).all(|(x, y)| x.to_bits() == y.to_bits());
                        assert!(same, "{rows} x {depth} x {columns}, added {add}");
                    }
                }
            }
        }
    }
}
