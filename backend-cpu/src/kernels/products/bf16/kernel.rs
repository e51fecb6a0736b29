//! The microkernel, which computes a tile of the result in registers, from a panel of each operand.

use std::arch::x86_64::{
    __m512, _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps,
    _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
};

use super::form::{Form, LANES};
use super::pack::mask;

/// Rows of a tile.
pub(super) const ROWS: usize = 8;

/// The destination of a tile: its first element, and the distance between its rows.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) into: *mut f32,
    pub(super) row_step: usize,
    /// Rows and columns in use: at most [`ROWS`] and those of the form.
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) add: bool,
    pub(super) scale: f32,
}

/// Multiplies `n` words of a panel of [`ROWS`] rows by those of a panel of columns.
/// Writes the scaled sums to the tile, or adds them.
///
/// # Safety
///
/// The processor has AVX-512 BF16. The panels hold `n` words of each of their lanes. The tile's
/// elements are valid for writing, initialised if `add` is set, and nobody else touches them.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn multiply<F: Form>(n: usize, a: *const u32, b: *const u32, tile: Tile) {
    // SAFETY: the caller's promise.
    unsafe {
        match tile.columns.div_ceil(LANES) {
            1 => across::<F, 1>(n, a, b, tile),
            2 => across::<F, 2>(n, a, b, tile),
            _ => across::<F, 3>(n, a, b, tile),
        }
    }
}

/// [`multiply`] for a tile of `VECTORS` vectors across.
///
/// # Safety
///
/// As for [`multiply`].
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn across<F: Form, const VECTORS: usize>(
    n: usize,
    a: *const u32,
    b: *const u32,
    tile: Tile,
) {
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    for word in 0..n {
        let mut columns = [_mm512_setzero_si512(); VECTORS];
        for (v, columns) in columns.iter_mut().enumerate() {
            // SAFETY: the panel holds `n` times this many words.
            let at = unsafe { b.add(word * F::COLUMNS + v * LANES) };
            // SAFETY: the vector ends within the panel.
            *columns = unsafe { _mm512_loadu_si512(at.cast()) };
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the panel holds `n` times this many words.
            let one = unsafe { a.add(word * ROWS + row).read() };
            let one = _mm512_set1_epi32(one.cast_signed());
            for (sum, columns) in sums.iter_mut().zip(columns) {
                // SAFETY: the processor has the instructions.
                *sum = unsafe { F::multiply(one, columns, *sum) };
            }
        }
    }
    let scale = _mm512_set1_ps(tile.scale);
    for (row, sums) in sums.iter().enumerate().take(tile.rows) {
        for (v, sum) in sums.iter().enumerate() {
            let there = mask(tile.columns.saturating_sub(v * LANES));
            let at = tile.into.wrapping_add(row * tile.row_step + v * LANES);
            let scaled: __m512 = if tile.add {
                // SAFETY: the elements under the mask are the tile's.
                _mm512_fmadd_ps(*sum, scale, unsafe { _mm512_maskz_loadu_ps(there, at) })
            } else {
                _mm512_mul_ps(*sum, scale)
            };
            // SAFETY: as above.
            unsafe { _mm512_mask_storeu_ps(at, there, scaled) };
        }
    }
}
