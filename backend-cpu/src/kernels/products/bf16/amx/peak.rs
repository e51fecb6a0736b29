//! The peak speed of tiles.

use std::arch::asm;
use std::time::Instant;

use super::{GROUP, TILE, WHOLE};

const STEPS: usize = 500;
const TRIES: usize = 1_000;

/// Measures the highest floating-point rate of one thread, per second, only on tiles.
///
/// # Safety
///
/// The processor has AMX, which this process may use.
pub(in super::super) unsafe fn measured() -> f64 {
    let mut best = f64::INFINITY;
    // SAFETY: a valid configuration, for a processor that has tiles.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE, options(nostack, readonly)) };
    for _ in 0..TRIES {
        let start = Instant::now();
        // SAFETY: tiles are configured, and no memory is touched.
        unsafe { multiply() };
        best = best.min(start.elapsed().as_secs_f64());
    }
    // SAFETY: nobody needs the tiles any more.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
    (2 * 4 * STEPS * TILE * TILE * GROUP) as f64 / best
}

/// Multiplies tiles, [`STEPS`] times four products that do not wait for each other.
///
/// # Safety
///
/// Tiles are configured.
unsafe fn multiply() {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "dec {n}",
            "jnz 2b",
            n = inout(reg) STEPS => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            options(nostack, nomem),
        );
    }
}
