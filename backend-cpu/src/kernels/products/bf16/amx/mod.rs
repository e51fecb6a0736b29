//! Intel's AMX: `tdpbf16ps` multiplies a tile of 16 rows by a tile of 16 columns, 32 numbers deep. It
//! treats denormal operands and sums as zero.
//!
//! The instructions stand in assembly, as Rust has no stable intrinsics for them.

mod pack;
mod peak;
mod permission;

use std::arch::asm;
use std::arch::x86_64::_mm512_loadu_ps;

use super::form::{ELEMENTS, Form, Strip};
use super::words::LANES;
pub(super) use peak::measured as peak;
pub(super) use permission::is_permitted;

/// Words across a tile of operands, and rows of any tile.
const TILE: usize = 16;
/// Words of a tile.
const WORDS: usize = TILE * TILE;
/// Elements of a lane in a tile.
const GROUP: usize = ELEMENTS * TILE;
/// Rows and columns of four tiles of sums.
const SIDE: usize = 2 * TILE;

/// The form of processors with AMX.
pub(super) const FORM: Form = Form {
    group: GROUP,
    columns: SIDE,
    depth: 1024,
    pack_rows: pack::rows,
    pack_columns: pack::columns,
    multiply,
};

/// The configuration of the eight tiles: each as large as can be.
#[repr(C, align(64))]
struct Configuration([u8; 64]);

static WHOLE: Configuration = {
    let mut bytes = [0; 64];
    bytes[0] = 1; // the palette
    let mut tile = 0;
    while tile < 8 {
        bytes[16 + 2 * tile] = (4 * TILE) as u8; // bytes of a row, as u16
        bytes[48 + tile] = TILE as u8;
        tile += 1;
    }
    Configuration(bytes)
};

/// Rows of sums, as they leave the tiles.
#[repr(C, align(64))]
struct Sums([f32; SIDE * SIDE]);

/// Multiplies packed rows by a panel of columns.
///
/// # Safety
///
/// The processor has AVX-512 and AMX, which this process may use. The panels hold `n_words` words of
/// each of their lanes, and rows are packed up to a whole number of [`SIDE`]. The elements of the
/// result are valid for writing, initialised if `add` is set, and nobody else touches them.
unsafe fn multiply(strip: Strip) {
    let mut sums = Sums([0.0; SIDE * SIDE]);
    // SAFETY: a valid configuration, for a processor that has tiles.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE, options(nostack, readonly)) };
    for top in (0..strip.rows).step_by(SIDE) {
        let a = strip.a.wrapping_add(top * strip.n_words);
        // SAFETY: the caller's promise.
        unsafe {
            product(strip.n_words, a, strip.b, &mut sums);
            write(strip, top, &sums);
        }
    }
    // SAFETY: nobody needs the tiles any more; without them, threads are switched faster.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// Multiplies two panels of rows by a panel of columns.
///
/// # Safety
///
/// Tiles are configured. `n_words` is a multiple of [`TILE`], and the panels hold as many words of
/// each of their lanes.
unsafe fn product(n_words: usize, a: *const u32, b: *const u32, sums: &mut Sums) {
    // SAFETY: tiles are read and written where the caller's promise and `sums` have room.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "test {n}, {n}",
            "jz 3f",
            "2:",
            "tileloadd tmm6, [{b} + {wide}]",
            "tileloadd tmm4, [{a} + {row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {wide} + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{a2} + {row}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, 1024",
            "add {a2}, 1024",
            "add {b}, 2048",
            "dec {n}",
            "jnz 2b",
            "3:",
            "tilestored [{sums} + {wide}], tmm0",
            "tilestored [{sums} + {wide} + 64], tmm1",
            "tilestored [{sums} + {wide} + 2048], tmm2",
            "tilestored [{sums} + {wide} + 2112], tmm3",
            n = inout(reg) n_words / TILE => _,
            a = inout(reg) a => _,
            a2 = inout(reg) a.wrapping_add(TILE * n_words) => _,
            b = inout(reg) b => _,
            row = in(reg) 4 * TILE,
            wide = in(reg) 4 * SIDE,
            sums = in(reg) &raw mut sums.0,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Writes sums to the rows from `top` on, scaled, or adds them.
///
/// # Safety
///
/// As for [`multiply`].
#[target_feature(enable = "avx512f")]
unsafe fn write(strip: Strip, top: usize, sums: &Sums) {
    for (row, sums) in sums.0.chunks_exact(SIDE).enumerate().take(strip.rows - top) {
        for (left, sums) in (0..strip.columns).step_by(LANES).zip(sums.chunks_exact(LANES)) {
            // SAFETY: the chunk is as long as a vector; the caller's promise.
            unsafe { strip.write(top + row, left, _mm512_loadu_ps(sums.as_ptr())) };
        }
    }
}
