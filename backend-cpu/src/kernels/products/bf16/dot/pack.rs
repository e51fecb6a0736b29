//! Packing: elements of an operand, rounded to bf16 (to nearest, ties to even), in the order in
//! which the microkernel reads them. A panel is some lanes wide: rows of the left operand, columns
//! of the right one. It holds one word of each lane, then the next word of each. A word is two
//! neighbours along the summed dimension, the first in the low half.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, __mmask16, _MM_HINT_T0, _mm_prefetch, _mm256_storeu_si256,
    _mm512_castsi512_si256, _mm512_cvtne2ps_pbh, _mm512_extracti64x4_epi64, _mm512_loadu_si512,
    _mm512_maskz_loadu_ps, _mm512_permutexvar_epi16, _mm512_setzero_si512, _mm512_shuffle_i32x4,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};
use std::mem::transmute;

use super::super::form::Source;
use super::{ELEMENTS, LANES};

/// Packs a source into panels that are `width` lanes wide, 8 or a multiple of 16. Whole groups of
/// [`LANES`] are written, with zeros in lanes that the source does not have.
///
/// # Safety
///
/// The processor has AVX-512 with BW and BF16. The source's elements can be read. `into` is valid
/// for writing the words of all panels, and of an even number of them if panels are 8 wide.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn pack(source: Source, into: *mut u32, width: usize) {
    let panels = Panels { into, width, n_words: source.len.div_ceil(ELEMENTS) };
    // SAFETY: the caller's promise.
    unsafe {
        if source.is_interleaved() {
            interleave(source, panels);
        } else {
            debug_assert_eq!(source.step, 1);
            transpose(source, panels);
        }
    }
}

/// The destination of lanes: panels `width` lanes wide, with `n_words` words of each lane.
#[derive(Clone, Copy)]
struct Panels {
    into: *mut u32,
    width: usize,
    n_words: usize,
}

impl Panels {
    /// Writes a word of each of [`LANES`] lanes from `first` on.
    ///
    /// # Safety
    ///
    /// The panels have room for this word of these lanes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn write(self, first: usize, word: usize, lanes: __m512i) {
        let place = |lane: usize| {
            let panel = lane / self.width * self.width * self.n_words;
            self.into.wrapping_add(panel + word * self.width + lane % self.width)
        };
        let (low, high) = (_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64::<1>(lanes));
        // SAFETY: the caller's promise.
        unsafe {
            _mm256_storeu_si256(place(first).cast(), low);
            _mm256_storeu_si256(place(first + LANES / 2).cast(), high);
        }
    }
}

/// Words that are prefetched: rows lie so far apart that no processor guesses the next one.
const AHEAD: usize = 4;

/// Packs lanes side by side: vectors with an element of every lane.
///
/// # Safety
///
/// As for [`pack`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn interleave(source: Source, panels: Panels) {
    // SAFETY: the array is as large as a vector.
    let order = unsafe { _mm512_loadu_si512(ORDER.as_ptr().cast()) };
    for word in 0..panels.n_words {
        let is_whole = ELEMENTS * word + 1 < source.len;
        for first in (0..source.lanes).step_by(LANES) {
            let lanes = mask(source.lanes - first);
            let from = source.from.wrapping_add(ELEMENTS * word * source.step + first);
            let next = from.wrapping_add(ELEMENTS * AHEAD * source.step);
            _mm_prefetch::<_MM_HINT_T0>(next.cast());
            _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(source.step).cast());
            let second = if is_whole { lanes } else { 0 };
            // SAFETY: elements under the mask are the source's.
            let a = unsafe { _mm512_maskz_loadu_ps(lanes, from) };
            // SAFETY: as above.
            let b = unsafe { _mm512_maskz_loadu_ps(second, from.wrapping_add(source.step)) };
            let words = _mm512_permutexvar_epi16(order, pairs(a, b));
            // SAFETY: one of the words that the panels have room for.
            unsafe { panels.write(first, word, words) };
        }
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

/// Packs lanes of contiguous neighbours: 16 words of each of 16 lanes, transposed as a square.
///
/// # Safety
///
/// As for [`pack`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn transpose(source: Source, panels: Panels) {
    for first in (0..source.lanes).step_by(LANES) {
        for start in (0..source.len).step_by(ELEMENTS * LANES) {
            let left = source.len - start;
            let (low, high) = (mask(left), mask(left.saturating_sub(LANES)));
            let mut square = [_mm512_setzero_si512(); LANES];
            for (lane, row) in square.iter_mut().enumerate().take(source.lanes - first) {
                let from = source.from.wrapping_add((first + lane) * source.lane_step + start);
                // SAFETY: elements under the mask are the source's.
                let a = unsafe { _mm512_maskz_loadu_ps(low, from) };
                // SAFETY: as above.
                let b = unsafe { _mm512_maskz_loadu_ps(high, from.wrapping_add(LANES)) };
                *row = pairs(a, b);
            }
            for (nth, words) in
                transposed(square).into_iter().enumerate().take(left.div_ceil(ELEMENTS))
            {
                // SAFETY: one of the words that the panels have room for.
                unsafe { panels.write(first, start / ELEMENTS + nth, words) };
            }
        }
    }
}

/// Transposes a square of u32.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512i; LANES]) -> [__m512i; LANES] {
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

/// Returns a mask of the first `n` lanes of a vector, or of all.
#[inline]
pub(super) fn mask(n: usize) -> __mmask16 {
    if n >= LANES { u16::MAX } else { (1 << n) - 1 }
}
