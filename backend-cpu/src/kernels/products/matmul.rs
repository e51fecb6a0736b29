//! Matrix products with any strides, by the `gemm` crate, or in bf16 by this one.

use gemm::Parallelism;

use super::bf16::RoundedProduct;
use super::matrix::Matrix;
use super::operands::Operands;
use crate::kernels::memory::Place;

/// Writes `scale a b` to `into`, a row-major matrix whose rows lie `row_step` apart, or adds it to
/// what `into` holds. Uses all threads of the current pool.
///
/// # Safety
///
/// `into` is valid for writing `a.rows x b.columns` elements, which nobody else touches meanwhile;
/// they are initialised if `add` is set.
pub(crate) unsafe fn matmul(
    operands: Operands,
    into: *mut f32,
    row_step: usize,
    add: bool,
    scale: f32,
    a: Matrix,
    b: Matrix,
) {
    assert_eq!(a.columns, b.rows);
    let threads = rayon::current_num_threads();
    let product = Product { into, row_step, add, scale, a, b };
    match operands {
        // SAFETY: the caller's promise.
        Operands::F32 => unsafe { product.run_fastest(threads) },
        // SAFETY: the caller's promise.
        Operands::Rounded => unsafe { product.run_rounded(threads) },
        Operands::Bf16(form) => {
            let product = RoundedProduct { into: Place::new(into), row_step, add, scale, a, b };
            // SAFETY: the caller's promise; the processor has the instructions of its forms.
            unsafe { product.run(form, threads) };
        }
    }
}

/// The most rows that are multiplied one by one if columns of the right operand are consecutive.
/// Compared with a block, dot products take a fifth of the time for two rows, and three quarters
/// for eight.
const FEW: usize = 8;

/// Returns true if consecutive columns lie so far apart that the `gemm` crate is slow to read them.
/// For AVX-512 it reads an element of 64 columns at a time. If columns lie a multiple of 4 KiB
/// apart, they fall on the same few lines of the first-level cache, which evicts each before its
/// next element is read.
fn is_slow(column_step: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    return column_step.is_multiple_of(1024) && std::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The arguments of [`matmul`], with the same safety contract, in f32.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub(super) into: *mut f32,
    pub(super) row_step: usize,
    pub(super) add: bool,
    pub(super) scale: f32,
    pub(super) a: Matrix<'a>,
    pub(super) b: Matrix<'a>,
}

impl<'a> Product<'a> {
    /// Multiplies in the way that is fastest for these shapes.
    ///
    /// # Safety
    ///
    /// As for [`matmul`].
    pub(super) unsafe fn run_fastest(self, threads: usize) {
        let rows = self.a.rows;
        // SAFETY: the caller's promise.
        unsafe {
            match self.b.row_step {
                1 if rows <= FEW => (0..rows).for_each(|row| self.row(row).run(threads)),
                1 if self.b.rows > 0 && is_slow(self.b.column_step) => self.run_copied(threads),
                _ => self.run(threads),
            }
        }
    }

    /// Returns the product of one row of the left operand.
    fn row(self, row: usize) -> Product<'a> {
        let into = self.into.wrapping_add(row * self.row_step);
        Product { into, a: self.a.row(row), ..self }
    }

    /// Multiplies with the `gemm` crate.
    ///
    /// # Safety
    ///
    /// As for [`matmul`].
    pub(super) unsafe fn run(self, threads: usize) {
        let Product { into, row_step, add, scale, a, b } = self;
        // SAFETY: both operands end within their slices, and the caller vouches for `into`.
        unsafe {
            gemm::gemm(
                a.rows,
                b.columns,
                a.columns,
                into,
                1,
                row_step as isize,
                add,
                a.data.as_ptr(),
                a.column_step as isize,
                a.row_step as isize,
                b.data.as_ptr(),
                b.column_step as isize,
                b.row_step as isize,
                1.0,
                scale,
                false,
                false,
                false,
                if threads == 1 { Parallelism::None } else { Parallelism::Rayon(threads) },
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_by_copied_operands_are_those_of_plain_sums() {
        for rows in [1, 5, 13, 40] {
            for (depth, columns) in [(512, 20), (700, 16), (1024, 130), (33, 7), (1 << 14, 130)] {
                let values = |n: usize, factor: usize| -> Vec<f32> {
                    (0..n).map(|i| (i * factor % 1009) as f32 * 2e-3 - 1.0).collect()
                };
                let (a, b) = (values(rows * depth, 7919), values(depth * columns, 40_013));
                let begin = values(rows * columns, 611);
                let product = |into: &mut Vec<f32>| Product {
                    into: into.as_mut_ptr(),
                    row_step: columns,
                    add: true,
                    scale: 0.5,
                    a: Matrix::new(&a, rows, depth, depth),
                    b: Matrix::new(&b, columns, depth, depth).t(),
                };
                let mut copied = begin.clone();
                // SAFETY: `copied` is as large as the product, and initialised.
                unsafe { product(&mut copied).run_copied(1) };
                let mut by_rows = begin.clone();
                // SAFETY: as above.
                (0..rows).for_each(|row| unsafe { product(&mut by_rows).row(row).run(1) });
                for (i, start) in begin.iter().enumerate() {
                    let (row, column) = (i / columns, i % columns);
                    let pairs = a[row * depth..][..depth].iter().zip(&b[column * depth..]);
                    let sum: f64 = pairs.map(|(x, y)| f64::from(x * y)).sum();
                    let expected = (f64::from(*start) + 0.5 * sum) as f32;
                    for got in [copied[i], by_rows[i]] {
                        let bound = 1e-4 * (depth as f32).sqrt();
                        assert!((got - expected).abs() < bound, "{got} for {expected} at {i}");
                    }
                }
            }
        }
    }
}
