//! Rounded operands as f32, multiplied and added by the FMA of any processor.
//!
//! A panel of columns holds an element of each lane, then the next of each. A panel of rows does so
//! only if its source is interleaved. Otherwise its lanes follow one another, as in memory: the
//! microkernel broadcasts single elements of rows, so it needs no transpose.

use std::array::from_fn;
use std::hint::black_box;

use pulp::{Simd, WithSimd};

use super::form::{Form, Source, Strip};

/// Vectors across a tile.
const VECTORS: usize = 3;

/// Returns the form for the vectors of this processor.
pub(crate) fn form() -> Form {
    struct Lanes;

    impl WithSimd for Lanes {
        type Output = usize;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> usize {
            S::F32_LANES
        }
    }

    let columns = VECTORS * pulp::Arch::new().dispatch(Lanes);
    Form { elements: 1, group: 1, columns, depth: 256, pack_rows, pack_columns, multiply }
}

/// Rows of a tile: the sums, a vector of each column and a broadcast element fill the registers.
#[inline(always)]
const fn rows<S: Simd>() -> usize {
    if S::REGISTER_COUNT >= 32 { 8 } else { 4 }
}

/// Packs rows.
///
/// # Safety
///
/// The source's elements can be read, and `into` is valid for writing its panels.
unsafe fn pack_rows(source: Source, into: *mut u32) {
    pulp::Arch::new().dispatch(Pack { source, into: into.cast(), is_left: true });
}

/// Packs columns.
///
/// # Safety
///
/// As for [`pack_rows`].
unsafe fn pack_columns(source: Source, into: *mut u32) {
    pulp::Arch::new().dispatch(Pack { source, into: into.cast(), is_left: false });
}

/// The arguments of [`pack_rows`] and [`pack_columns`], with the same safety contract.
struct Pack {
    source: Source,
    into: *mut f32,
    is_left: bool,
}

impl WithSimd for Pack {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Pack { source, into, is_left } = self;
        match (is_left, source.is_interleaved()) {
            (true, true) => interleave(source, into, rows::<S>()),
            (true, false) => copy(source, into),
            (false, true) => interleave(source, into, VECTORS * S::F32_LANES),
            (false, false) => transpose(source, into, VECTORS * S::F32_LANES),
        }
    }
}

/// Elements of a line of the cache.
const LINE: usize = 16;

/// Packs lanes side by side into panels of `width`. Panels that share lines of the source are
/// packed together. More would be written to the same few lines of the first-level cache.
#[inline(always)]
fn interleave(source: Source, into: *mut f32, width: usize) {
    let together = width.max(LINE);
    for group in (0..source.lanes).step_by(together) {
        let end = source.lanes.min(group + together);
        for nth in 0..source.len {
            for first in (group..end).step_by(width) {
                let from = source.from.wrapping_add(nth * source.step + first);
                let to = into.wrapping_add(first * source.len + nth * width);
                if first + width <= end {
                    round_all(from, to, width);
                } else {
                    round_all(from, to, end - first);
                }
            }
        }
    }
}

/// Packs lanes one after another.
#[inline(always)]
fn copy(source: Source, into: *mut f32) {
    for lane in 0..source.lanes {
        let from = source.from.wrapping_add(lane * source.lane_step);
        round_all(from, into.wrapping_add(lane * source.len), source.len);
    }
}

/// Rounds `n` consecutive elements.
#[inline(always)]
fn round_all(from: *const f32, to: *mut f32, n: usize) {
    for i in 0..n {
        // SAFETY: elements of the source, and their places in a panel.
        unsafe { to.add(i).write(rounded(from.add(i).read())) };
    }
}

/// Elements of a lane, and lanes, that are transposed together.
const SQUARE: usize = 4;

/// Packs lanes of consecutive elements into panels of `width`.
#[inline(always)]
fn transpose(source: Source, into: *mut f32, width: usize) {
    for first in (0..source.lanes).step_by(SQUARE) {
        let n_lanes = SQUARE.min(source.lanes - first);
        let from = source.from.wrapping_add(first * source.lane_step);
        let place =
            |lane: usize| into.wrapping_add(lane / width * width * source.len + lane % width);
        let is_one_panel = first / width == (first + SQUARE - 1) / width;
        let whole =
            if n_lanes == SQUARE && is_one_panel { source.len / SQUARE * SQUARE } else { 0 };
        for start in (0..whole).step_by(SQUARE) {
            let mut square = [[0.0; SQUARE]; SQUARE];
            for (lane, square) in square.iter_mut().enumerate() {
                round_all(
                    from.wrapping_add(lane * source.lane_step + start),
                    square.as_mut_ptr(),
                    SQUARE,
                );
            }
            let column = |nth| from_fn(|lane: usize| square[lane][nth]);
            let columns: [[f32; SQUARE]; SQUARE] = from_fn(column);
            for (nth, column) in columns.into_iter().enumerate() {
                let to = place(first).wrapping_add((start + nth) * width);
                // SAFETY: these lanes' places in their panel.
                unsafe { to.cast::<[f32; SQUARE]>().write_unaligned(column) };
            }
        }
        for lane in 0..n_lanes {
            for nth in whole..source.len {
                let x = from.wrapping_add(lane * source.lane_step + nth);
                // SAFETY: an element of the source, and its place in a panel.
                unsafe { place(first + lane).add(nth * width).write(rounded(x.read())) };
            }
        }
    }
}

/// Rounds to bf16: to nearest, ties to even. Denormals become zero.
#[inline(always)]
fn rounded(x: f32) -> f32 {
    const UPPER: u32 = 0xffff_0000;
    const EXPONENT: u32 = 0x7f80_0000;
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & UPPER;
    let quiet = (bits | 0x0040_0000) & UPPER;
    let zero = bits & 0x8000_0000;
    let rounded = if x.is_nan() { quiet } else { nearest };
    f32::from_bits(if bits & EXPONENT == 0 { zero } else { rounded })
}

/// Multiplies packed rows by a panel of columns.
///
/// # Safety
///
/// The panels hold `n_words` words of each of their lanes. The elements of the result are valid for
/// writing, initialised if `add` is set, and nobody else touches them.
unsafe fn multiply(strip: Strip) {
    pulp::Arch::new().dispatch(Tiles(strip));
}

/// The argument of [`multiply`], with the same safety contract.
#[derive(Clone, Copy)]
struct Tiles(Strip);

impl WithSimd for Tiles {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if S::REGISTER_COUNT >= 32 {
            self.across::<S, 8>(simd);
        } else {
            self.across::<S, 4>(simd);
        }
    }
}

impl Tiles {
    #[inline(always)]
    fn across<S: Simd, const ROWS: usize>(self, simd: S) {
        match self.0.columns.div_ceil(S::F32_LANES) {
            1 => self.down::<S, ROWS, 1>(simd),
            2 => self.down::<S, ROWS, 2>(simd),
            _ => self.down::<S, ROWS, VECTORS>(simd),
        }
    }

    /// Multiplies all rows, in tiles of some vectors across.
    #[inline(always)]
    fn down<S: Simd, const ROWS: usize, const ACROSS: usize>(self, simd: S) {
        let Strip { n_words, rows, is_interleaved, .. } = self.0;
        // Opaque: consecutive elements would be read as a vector and shuffled, which takes time from
        // FMA.
        let steps = black_box(if is_interleaved { [1, ROWS] } else { [n_words, 1] });
        for top in (0..rows).step_by(ROWS) {
            self.tile::<S, ROWS, ACROSS>(simd, top, steps);
        }
    }

    /// Multiplies a panel of rows, whose lanes and whose elements lie some steps apart.
    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize, const ACROSS: usize>(
        self,
        simd: S,
        top: usize,
        [lane_step, step]: [usize; 2],
    ) {
        let Strip { n_words, a, b, .. } = self.0;
        let mut sums = [[simd.splat_f32s(0.0); ACROSS]; ROWS];
        let mut a = a.cast::<f32>().wrapping_add(top * n_words);
        let mut b = b.cast::<f32>();
        for _ in 0..n_words {
            let mut columns = [simd.splat_f32s(0.0); ACROSS];
            for (v, columns) in columns.iter_mut().enumerate() {
                // SAFETY: the vector ends within the panel.
                *columns = unsafe { b.add(v * S::F32_LANES).cast::<S::f32s>().read_unaligned() };
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: the panel holds as many words of each lane.
                let x = simd.splat_f32s(unsafe { a.add(row * lane_step).read() });
                for (sum, columns) in sums.iter_mut().zip(columns) {
                    *sum = simd.mul_add_f32s(x, columns, *sum);
                }
            }
            a = a.wrapping_add(step);
            b = b.wrapping_add(VECTORS * S::F32_LANES);
        }
        // Opaque: sums that the caller's loops index would be written to memory at every step.
        self.write(simd, top, &black_box(sums));
    }

    /// Writes a tile, scaled, or adds it.
    #[inline(always)]
    fn write<S: Simd, const ROWS: usize, const ACROSS: usize>(
        self,
        simd: S,
        top: usize,
        sums: &[[S::f32s; ACROSS]; ROWS],
    ) {
        let Strip { into, row_step, rows, columns, add, scale, .. } = self.0;
        let scale = simd.splat_f32s(scale);
        for (row, sums) in sums.iter().enumerate().take(rows - top) {
            for (v, sum) in sums.iter().enumerate() {
                let left = v * S::F32_LANES;
                let to = into.wrapping_add((top + row) * row_step + left);
                let last = columns - left;
                // SAFETY: elements that the caller lets this thread write, initialised if added to.
                unsafe {
                    if last >= S::F32_LANES {
                        let to = to.cast::<S::f32s>();
                        let there = if add { to.read_unaligned() } else { scale };
                        to.write_unaligned(scaled(simd, add, *sum, scale, there));
                        continue;
                    }
                    if !add {
                        to.cast::<std::mem::MaybeUninit<f32>>().write_bytes(0, last);
                    }
                    let to = std::slice::from_raw_parts_mut(to, last);
                    let there = simd.partial_load_f32s(to);
                    simd.partial_store_f32s(to, scaled(simd, add, *sum, scale, there));
                }
            }
        }
    }
}

/// Scales a vector of sums, and adds `there` if the product is added.
#[inline(always)]
fn scaled<S: Simd>(simd: S, add: bool, sum: S::f32s, scale: S::f32s, there: S::f32s) -> S::f32s {
    if add { simd.mul_add_f32s(sum, scale, there) } else { simd.mul_f32s(sum, scale) }
}
