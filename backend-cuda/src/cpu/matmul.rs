//! Matrix products of any strides, added to what is there or not: by the `gemm` crate, or in bf16 by our own.

#[cfg(target_arch = "x86_64")]
use super::bf16::RoundedProduct;
use super::bf16::Supported;
use super::matrix::Matrix;
#[cfg(target_arch = "x86_64")]
use super::memory::Place;

use gemm::Parallelism;

/// What the operands of products are rounded to before they are multiplied; sums are f32.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operands {
    /// They stay as they are.
    F32,
    Bf16(Supported),
}

/// Writes `scale a b` to `into`, a row-major matrix whose rows lie `row_step` apart, or adds it to what `into` holds, by
/// all threads of the current pool.
///
/// # Safety
///
/// `into` is valid for writing `a.rows x b.columns` elements, which nobody else touches meanwhile;
/// they are initialised if `add` is set.
pub(super) unsafe fn matmul(
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
    #[cfg(target_arch = "x86_64")]
    if let Operands::Bf16(supported) = operands {
        let product = RoundedProduct { into: Place::new(into), row_step, add, scale, a, b };
        // SAFETY: the caller's promise.
        return unsafe { product.run(supported, threads) };
    }
    let _ = operands; // others have f32 alone
    // SAFETY: both operands end inside of their slices, and `into` is the caller's promise.
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
