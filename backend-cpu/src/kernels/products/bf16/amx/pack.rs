//! Packing, rounded as for `vdpbf16ps`. Columns lie as they do there, and a lane ends in zeros up to
//! a whole tile. Rows lie in tiles of 16 rows of 16 words each, one tile after another along the
//! summed dimension.

use std::arch::x86_64::{__m512i, _mm512_setzero_si512, _mm512_storeu_si512};

use super::super::dot::pack;
use super::super::form::{ELEMENTS, Source};
use super::super::words::{transposed, word_of_lanes, words_of_lane};
use super::{GROUP, SIDE, TILE, WORDS};

/// Packs columns.
///
/// # Safety
///
/// As for [`pack::pack`].
pub(super) unsafe fn columns(source: Source, into: *mut u32) {
    // SAFETY: the caller's promise.
    unsafe { pack::pack(source, into, SIDE, GROUP) };
}

/// Packs rows.
///
/// # Safety
///
/// As for [`pack::pack`], with a whole number of tiles of rows.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn rows(source: Source, into: *mut u32) {
    let n_tiles = source.len.div_ceil(GROUP);
    for (panel, first) in (0..source.lanes).step_by(TILE).enumerate() {
        for nth in 0..n_tiles {
            // SAFETY: the caller's promise.
            let tile = unsafe { tile(source, first, nth) };
            let into = into.wrapping_add((panel * n_tiles + nth) * WORDS);
            for (row, words) in tile.into_iter().enumerate() {
                // SAFETY: one row of a tile that the panels have room for.
                unsafe { _mm512_storeu_si512(into.wrapping_add(row * TILE).cast(), words) };
            }
        }
    }
}

/// Returns the rows of a tile: the words from `nth` tiles on, of the lanes from `first` on.
///
/// # Safety
///
/// The processor has AVX-512 with BW and BF16, and the source's elements can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn tile(source: Source, first: usize, nth: usize) -> [__m512i; TILE] {
    let mut rows = [_mm512_setzero_si512(); TILE];
    if !source.is_interleaved() {
        for (lane, row) in rows.iter_mut().enumerate().take(source.lanes - first) {
            // SAFETY: the caller's promise.
            *row = unsafe { words_of_lane(source, first + lane, nth * GROUP) };
        }
        return rows;
    }
    let left = (source.len - nth * GROUP).div_ceil(ELEMENTS);
    for (word, lanes) in rows.iter_mut().enumerate().take(left) {
        // SAFETY: the caller's promise.
        *lanes = unsafe { word_of_lanes(source, first, nth * TILE + word) };
    }
    transposed(rows)
}
