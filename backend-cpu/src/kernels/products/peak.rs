//! The peak speed of the processor.

use std::hint::black_box;
use std::time::Instant;

use super::bf16::has_bf16;

/// Independent sums: enough to hide the latency of an addition, few enough for the registers.
const CHAINS: usize = if cfg!(target_arch = "aarch64") { 24 } else { 12 };
const STEPS: usize = 4_000;
const TRIES: usize = 1_000;

/// Measures the highest f32 floating-point rate of one thread, per second: fused multiply-adds of
/// the widest vectors, only on registers. It takes tens of milliseconds. The best of many short
/// tries counts, so that other work on the machine does not disturb it.
pub fn measured_peak() -> f64 {
    struct Peak;

    impl pulp::WithSimd for Peak {
        type Output = f64;

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, simd: S) -> f64 {
            let half = simd.splat_f32s(black_box(0.5));
            let mut best = f64::INFINITY;
            for _ in 0..TRIES {
                let mut sums = black_box([half; CHAINS]);
                let start = Instant::now();
                for _ in 0..STEPS {
                    for sum in &mut sums {
                        *sum = simd.mul_add_f32s(*sum, half, half);
                    }
                }
                black_box(sums);
                best = best.min(start.elapsed().as_secs_f64());
            }
            (2 * S::F32_LANES * CHAINS * STEPS) as f64 / best
        }
    }

    pulp::Arch::new().dispatch(Peak)
}

/// Measures the highest rate of one thread, per second, in bf16 products that are summed in f32, if
/// the processor has AVX-512 BF16. The method is that of [`measured_peak`].
pub(crate) fn dot_peak() -> Option<f64> {
    if !has_bf16() {
        return None;
    }
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the processor has the instruction.
        Some(unsafe { peak_of_bf16() })
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn peak_of_bf16() -> f64 {
    use std::arch::x86_64::{_mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_set1_ps};

    const PAIRS: usize = 16;
    let half = _mm512_set1_ps(black_box(0.5));
    let halves = _mm512_cvtne2ps_pbh(half, half);
    let mut best = f64::INFINITY;
    for _ in 0..TRIES {
        let mut sums = black_box([half; CHAINS]);
        let start = Instant::now();
        for _ in 0..STEPS {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, halves, halves);
            }
        }
        black_box(sums);
        best = best.min(start.elapsed().as_secs_f64());
    }
    (4 * PAIRS * CHAINS * STEPS) as f64 / best
}
