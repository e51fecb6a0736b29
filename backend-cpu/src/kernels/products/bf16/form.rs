//! The two ways to multiply bf16 operands.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_castsi512_ps, _mm512_dpbf16_ps, _mm512_fmadd_ps,
};
use std::mem::transmute;

/// Lanes that are packed at once: a vector of f32.
pub(super) const LANES: usize = 16;

/// The layout of packed operands, and the instruction that multiplies them.
pub(super) trait Form: Copy + Send + Sync {
    /// Elements of a lane in a word of 32 bits.
    const ELEMENTS: usize;

    /// Columns of a tile: with the rows, as many sums as hide the latency of the instruction.
    const COLUMNS: usize;

    /// Returns the words that hold `len` elements of a lane.
    fn words(len: usize) -> usize {
        len.div_ceil(Self::ELEMENTS)
    }

    /// Adds the products of words to sums.
    ///
    /// # Safety
    ///
    /// The processor has AVX-512 BF16.
    unsafe fn multiply(a: __m512i, b: __m512i, sums: __m512) -> __m512;
}

/// Two bf16 in a word, the first in the low half: `vdpbf16ps` adds two products at once. It treats
/// denormal operands and sums as zero.
#[derive(Clone, Copy)]
pub(super) struct Pairs;

impl Form for Pairs {
    const ELEMENTS: usize = 2;
    const COLUMNS: usize = 2 * LANES;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn multiply(a: __m512i, b: __m512i, sums: __m512) -> __m512 {
        // SAFETY: all are 64 bytes, and every value is valid for them.
        let [a, b] = unsafe { transmute::<[__m512i; 2], [__m512bh; 2]>([a, b]) };
        _mm512_dpbf16_ps(sums, a, b)
    }
}

/// A bf16 as f32 in a word, multiplied and added by FMA.
#[derive(Clone, Copy)]
pub(super) struct Singles;

impl Form for Singles {
    const ELEMENTS: usize = 1;
    const COLUMNS: usize = 3 * LANES;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn multiply(a: __m512i, b: __m512i, sums: __m512) -> __m512 {
        _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sums)
    }
}
