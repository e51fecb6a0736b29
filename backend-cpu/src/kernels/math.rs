//! Functions without branches and with a fixed number of lanes, which the compiler vectorises.

/// Elements that are summed side by side. Sums depend on it, so it is the same on all processors.
pub(super) const LANES: usize = 16;

/// `eˣ` to 1.5e-7 relative (Cephes' `expf`: `x = n ln 2 + r`, a polynomial in `r`, and `n` added to
/// the exponent). Results below 1.6e-38 are 0, none is infinite, and NaN is kept.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it leaves an integer in the low bits
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const LEAST: f32 = -87.0;
    let underflows = x < LEAST;
    let x = x.clamp(LEAST, 88.0);
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let p = 1.987_569_2e-4f32
        .mul_add(r, 1.398_2e-3)
        .mul_add(r, 8.333_452e-3)
        .mul_add(r, 4.166_579_6e-2)
        .mul_add(r, 1.666_666_5e-1)
        .mul_add(r, 0.5);
    let power = p.mul_add(r * r, r) + 1.0;
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    if underflows { 0.0 } else { power * scale }
}

/// The natural logarithm of a positive number that is not denormal, to 1e-7 relative or absolute
/// (Cephes' `logf`: for `x = 2ⁿ m` with `m` about 1, a polynomial in `m - 1`). It keeps infinity
/// and NaN.
#[inline(always)]
pub(super) fn ln(x: f32) -> f32 {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const ROOT_HALF: u32 = 0x3f35_04f3;
    // The mantissa lies between the roots of 1/2 and of 2.
    let above = x.to_bits().wrapping_sub(ROOT_HALF);
    let n = (above.cast_signed() >> 23) as f32;
    let r = f32::from_bits((above & 0x007f_ffff) + ROOT_HALF) - 1.0;
    let p = 7.037_683_6e-2f32
        .mul_add(r, -1.151_461e-1)
        .mul_add(r, 1.167_699_9e-1)
        .mul_add(r, -1.242_014_1e-1)
        .mul_add(r, 1.424_932_3e-1)
        .mul_add(r, -1.666_805_7e-1)
        .mul_add(r, 2.000_071_5e-1)
        .mul_add(r, -2.499_999_4e-1)
        .mul_add(r, 3.333_333e-1);
    let square = r * r;
    let small = n.mul_add(LN_2_LOW, (p * r).mul_add(square, -0.5 * square));
    let log = n.mul_add(LN_2_HIGH, r + small);
    if x < f32::INFINITY { log } else { x }
}

/// Sums `f` over slices of equal length, element by element.
#[inline(always)]
pub(super) fn sum<const N: usize>(xs: [&[f32]; N], f: impl Fn([f32; N]) -> f32) -> f32 {
    let cut = xs.map(|x| x.as_chunks::<LANES>());
    let mut lanes = [0.0; LANES];
    for c in 0..cut[0].0.len() {
        let chunk = cut.map(|(chunks, _)| &chunks[c]);
        for lane in 0..LANES {
            lanes[lane] += f(chunk.map(|chunk| chunk[lane]));
        }
    }
    for (lane, i) in (0..cut[0].1.len()).enumerate() {
        lanes[lane] += f(cut.map(|(_, rest)| rest[i]));
    }
    across(lanes, |a, b| a + b)
}

/// Returns the greatest element, ignoring NaN.
#[inline(always)]
pub(super) fn max(x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = greater(chunk[lane], lanes[lane]);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = greater(x, *lane);
    }
    across(lanes, greater)
}

/// Replaces each `x` by `exp(scale x - shift)` and returns their sum.
#[inline(always)]
pub(super) fn exp_sum(x: &mut [f32], scale: f32, shift: f32) -> f32 {
    let (chunks, rest) = x.as_chunks_mut::<LANES>();
    let mut lanes = [0.0; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            chunk[lane] = exp(chunk[lane].mul_add(scale, -shift));
            lanes[lane] += chunk[lane];
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *x = exp(x.mul_add(scale, -shift));
        *lane += *x;
    }
    across(lanes, |a, b| a + b)
}

#[inline(always)]
fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Combines all lanes, half with half: the shortest chain of dependent steps.
#[inline(always)]
fn across(mut lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = f(lanes[lane], lanes[lane + width]);
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_and_keeps_nan() {
        let worst = (-8699..8800)
            .map(|i| i as f32 * 0.01)
            .map(|x| (f64::from(exp(x)) / f64::from(x).exp() - 1.0).abs())
            .fold(0.0, f64::max);
        assert!(worst < 1.5e-7, "{worst}");
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::INFINITY) > 1e38);
    }

    #[test]
    fn logarithms_are_accurate_and_keep_what_is_no_number() {
        let from = [1e-30f32, 0.3, 0.7, 0.9, 1.0, 1.4, 7.0, 3e7];
        for from in from {
            for i in 0..1000 {
                let x = from * (i as f32).mul_add(1e-3, 1.0);
                let exact = f64::from(x).ln();
                let error = (f64::from(ln(x)) - exact).abs() / exact.abs().max(1.0);
                assert!(error < 1e-7, "ln {x}: {error}");
            }
        }
        assert_eq!(ln(1.0), 0.0);
        assert!(ln(f32::NAN).is_nan());
        assert_eq!(ln(f32::INFINITY), f32::INFINITY);
    }

    #[test]
    fn sums_take_what_is_left_over() {
        for n in 0..40 {
            let x: Vec<f32> = (1..=n).map(|i| i as f32).collect();
            assert_eq!(sum([&x, &x], |[a, b]| a * b), (n * (n + 1) * (2 * n + 1) / 6) as f32);
            assert_eq!(max(&x), if n == 0 { f32::NEG_INFINITY } else { n as f32 });
            assert_eq!(exp_sum(&mut vec![0.0; n as usize], 1.0, 0.0), n as f32);
        }
    }
}
