//! AVX-512 BF16: `vdpbf16ps` adds two products at once. It treats denormal operands and sums as
//! zero.

pub(super) mod pack;

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_loadu_si512, _mm512_set1_epi32,
    _mm512_setzero_ps, _mm512_setzero_si512,
};
use std::mem::transmute;

use super::form::{ELEMENTS, Form, Source, Strip};
use super::words::LANES;

const ROWS: usize = 8;
const COLUMNS: usize = 2 * LANES;

/// The form of processors with AVX-512 BF16.
pub(super) const FORM: Form =
    Form { group: ELEMENTS, columns: COLUMNS, depth: 512, pack_rows, pack_columns, multiply };

/// Packs rows.
///
/// # Safety
///
/// As for [`pack::pack`].
unsafe fn pack_rows(source: Source, into: *mut u32) {
    // SAFETY: the caller's promise.
    unsafe { pack::pack(source, into, ROWS, ELEMENTS) };
}

/// Packs columns.
///
/// # Safety
///
/// As for [`pack::pack`].
unsafe fn pack_columns(source: Source, into: *mut u32) {
    // SAFETY: the caller's promise.
    unsafe { pack::pack(source, into, COLUMNS, ELEMENTS) };
}

/// Multiplies packed rows by a panel of columns.
///
/// # Safety
///
/// The processor has AVX-512 BF16. The panels hold `n_words` words of each of their lanes. The
/// elements of the result are valid for writing, initialised if `add` is set, and nobody else
/// touches them.
unsafe fn multiply(strip: Strip) {
    for top in (0..strip.rows).step_by(ROWS) {
        // SAFETY: the caller's promise.
        unsafe {
            match strip.columns.div_ceil(LANES) {
                1 => tile::<1>(strip, top),
                _ => tile::<2>(strip, top),
            }
        }
    }
}

/// Multiplies a panel of rows, for a tile of `VECTORS` vectors across.
///
/// # Safety
///
/// As for [`multiply`].
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn tile<const VECTORS: usize>(strip: Strip, top: usize) {
    let a = strip.a.wrapping_add(top * strip.n_words);
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    for word in 0..strip.n_words {
        let mut columns = [_mm512_setzero_si512(); VECTORS];
        for (v, columns) in columns.iter_mut().enumerate() {
            // SAFETY: the panel holds `n_words` times this many words.
            let at = unsafe { strip.b.add(word * COLUMNS + v * LANES) };
            // SAFETY: the vector ends within the panel.
            *columns = unsafe { _mm512_loadu_si512(at.cast()) };
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the panel holds `n_words` times this many words.
            let one = unsafe { a.add(word * ROWS + row).read() };
            let one = _mm512_set1_epi32(one.cast_signed());
            for (sum, columns) in sums.iter_mut().zip(columns) {
                *sum = dot(one, columns, *sum);
            }
        }
    }
    for (row, sums) in sums.iter().enumerate().take(strip.rows - top) {
        for (v, sum) in sums.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { strip.write(top + row, v * LANES, *sum) };
        }
    }
}

/// Adds the products of pairs to sums.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn dot(a: __m512i, b: __m512i, sums: __m512) -> __m512 {
    // SAFETY: all are 64 bytes, and every value is valid for them.
    let [a, b] = unsafe { transmute::<[__m512i; 2], [__m512bh; 2]>([a, b]) };
    _mm512_dpbf16_ps(sums, a, b)
}
