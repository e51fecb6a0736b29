//! Packing: elements of an operand, rounded to bf16 (to nearest, ties to even), in the order in
//! which the microkernel reads them. A panel is some lanes wide: rows of the left operand, columns
//! of the right one. It holds one word of each lane, then the next word of each. A word is two
//! neighbours along the summed dimension, the first in the low half.

use std::arch::x86_64::{
    __m512i, _mm256_storeu_si256, _mm512_castsi512_si256, _mm512_extracti64x4_epi64,
    _mm512_setzero_si512,
};

use super::super::form::{ELEMENTS, Source};
use super::super::words::{LANES, transposed, word_of_lanes, words_of_lane};

/// Packs a source into panels that are `width` lanes wide, 8 or a multiple of 16. Whole groups of
/// [`LANES`] are written, with zeros in lanes that the source does not have. A lane ends in zeros up
/// to a multiple of `group` elements.
///
/// # Safety
///
/// The processor has AVX-512 with BW and BF16. The source's elements can be read. `into` is valid
/// for writing the words of all panels, and of an even number of them if panels are 8 wide.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(in super::super) unsafe fn pack(source: Source, into: *mut u32, width: usize, group: usize) {
    let panels = Panels { into, width, n_words: source.len.next_multiple_of(group) / ELEMENTS };
    let n_words = source.len.div_ceil(ELEMENTS);
    // SAFETY: the caller's promise.
    unsafe {
        if source.is_interleaved() {
            interleave(source, n_words, panels);
        } else {
            debug_assert_eq!(source.step, 1);
            transpose(source, n_words, panels);
        }
        for word in n_words..panels.n_words {
            for first in (0..source.lanes).step_by(LANES) {
                panels.write(first, word, _mm512_setzero_si512());
            }
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

/// Packs lanes side by side: vectors with an element of every lane.
///
/// # Safety
///
/// As for [`pack`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn interleave(source: Source, n_words: usize, panels: Panels) {
    for word in 0..n_words {
        for first in (0..source.lanes).step_by(LANES) {
            // SAFETY: the caller's promise; a word that the panels have room for.
            unsafe { panels.write(first, word, word_of_lanes(source, first, word)) };
        }
    }
}

/// Packs lanes of contiguous neighbours: 16 words of each of 16 lanes, transposed as a square.
///
/// # Safety
///
/// As for [`pack`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn transpose(source: Source, n_words: usize, panels: Panels) {
    for first in (0..source.lanes).step_by(LANES) {
        for start in (0..n_words).step_by(LANES) {
            let mut square = [_mm512_setzero_si512(); LANES];
            for (lane, row) in square.iter_mut().enumerate().take(source.lanes - first) {
                // SAFETY: the caller's promise.
                *row = unsafe { words_of_lane(source, first + lane, ELEMENTS * start) };
            }
            for (nth, words) in transposed(square).into_iter().enumerate().take(n_words - start) {
                // SAFETY: one of the words that the panels have room for.
                unsafe { panels.write(first, start + nth, words) };
            }
        }
    }
}
