//! Vectors of words: pairs of neighbours along the summed dimension, rounded to bf16 (to nearest,
//! ties to even). A word has the first neighbour in its low half.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, __mmask16, _MM_HINT_T0, _mm_prefetch, _mm512_cvtne2ps_pbh,
    _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps,
    _mm512_mul_ps, _mm512_permutexvar_epi16, _mm512_set1_ps, _mm512_shuffle_i32x4,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};
use std::mem::transmute;

use super::form::{ELEMENTS, Source, Strip};

/// Words of a vector, and lanes of a vector of f32.
pub(super) const LANES: usize = 16;

/// Words that are prefetched: rows lie so far apart that no processor guesses the next one.
const AHEAD: usize = 4;

/// Returns a word of each of [`LANES`] interleaved lanes from `first` on.
///
/// # Safety
///
/// The processor has AVX-512 with BW and BF16, and the source's elements can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn word_of_lanes(source: Source, first: usize, word: usize) -> __m512i {
    let lanes = mask(source.lanes - first);
    let from = source.from.wrapping_add(ELEMENTS * word * source.step + first);
    let next = from.wrapping_add(ELEMENTS * AHEAD * source.step);
    _mm_prefetch::<_MM_HINT_T0>(next.cast());
    _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(source.step).cast());
    let second = if ELEMENTS * word + 1 < source.len { lanes } else { 0 };
    // SAFETY: elements under the mask are the source's, and the array is as large as a vector.
    unsafe {
        let a = _mm512_maskz_loadu_ps(lanes, from);
        let b = _mm512_maskz_loadu_ps(second, from.wrapping_add(source.step));
        let order = _mm512_loadu_si512(ORDER.as_ptr().cast());
        _mm512_permutexvar_epi16(order, pairs(a, b))
    }
}

/// Returns [`LANES`] words of a contiguous lane, from the element `start` on.
///
/// # Safety
///
/// The processor has AVX-512 with BW and BF16, and the source's elements can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn words_of_lane(source: Source, lane: usize, start: usize) -> __m512i {
    let left = source.len - start;
    let from = source.from.wrapping_add(lane * source.lane_step + start);
    // SAFETY: elements under the masks are the source's.
    unsafe {
        let low = _mm512_maskz_loadu_ps(mask(left), from);
        let upper = mask(left.saturating_sub(LANES));
        pairs(low, _mm512_maskz_loadu_ps(upper, from.wrapping_add(LANES)))
    }
}

/// Rounds to bf16: `low` becomes the low half of the vector.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn pairs(low: __m512, high: __m512) -> __m512i {
    // SAFETY: both are 64 bytes, and every value is valid for them.
    unsafe { transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

/// 0, 16, 1, 17, …: alternates between the halves of a vector.
const ORDER: [u16; 2 * LANES] = {
    let mut order = [0; 2 * LANES];
    let mut i = 0;
    while i < 2 * LANES {
        order[i] = (i / 2 + i % 2 * LANES) as u16;
        i += 1;
    }
    order
};

/// Transposes a square of u32.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transposed(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    let mut pairs = rows;
    for i in 0..LANES / 2 {
        pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    // `fours[4 i + j]` has column j of each quarter, of rows 4 i to 4 i + 3.
    let mut fours = pairs;
    for i in 0..LANES / 4 {
        for j in 0..2 {
            let (a, b) = (pairs[4 * i + j], pairs[4 * i + j + 2]);
            fours[4 * i + 2 * j] = _mm512_unpacklo_epi64(a, b);
            fours[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(a, b);
        }
    }
    let mut columns = fours;
    for j in 0..4 {
        let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
        let even = [_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0x88>(c, d)];
        let odd = [_mm512_shuffle_i32x4::<0xdd>(a, b), _mm512_shuffle_i32x4::<0xdd>(c, d)];
        columns[j] = _mm512_shuffle_i32x4::<0x88>(even[0], even[1]);
        columns[8 + j] = _mm512_shuffle_i32x4::<0xdd>(even[0], even[1]);
        columns[4 + j] = _mm512_shuffle_i32x4::<0x88>(odd[0], odd[1]);
        columns[12 + j] = _mm512_shuffle_i32x4::<0xdd>(odd[0], odd[1]);
    }
    columns
}

impl Strip {
    /// Writes sums to the elements of a row from the column `left` on, scaled, or adds them.
    ///
    /// # Safety
    ///
    /// The processor has AVX-512. The row is one of the strip's. Its elements are valid for writing,
    /// initialised if `add` is set, and nobody else touches them.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn write(self, row: usize, left: usize, sums: __m512) {
        let scale = _mm512_set1_ps(self.scale);
        let there = mask(self.columns.saturating_sub(left));
        let at = self.into.wrapping_add(row * self.row_step + left);
        let scaled = if self.add {
            // SAFETY: the elements under the mask are the strip's.
            _mm512_fmadd_ps(sums, scale, unsafe { _mm512_maskz_loadu_ps(there, at) })
        } else {
            _mm512_mul_ps(sums, scale)
        };
        // SAFETY: as above.
        unsafe { _mm512_mask_storeu_ps(at, there, scaled) };
    }
}

/// Returns a mask of the first `n` lanes of a vector, or of all.
#[inline]
fn mask(n: usize) -> __mmask16 {
    if n >= LANES { u16::MAX } else { (1 << n) - 1 }
}
