//! Numbers in 8 bits: blocks whose largest magnitude becomes 127.

use chimera_schedule::compression::BLOCK;

/// The largest magnitude of a number in 8 bits. -128 is not used, so that signs are treated alike.
const MOST: f32 = 127.0;
/// Adding 1.5 * 2^23 rounds an f32 below 2^22 to a whole number, ties to even. Its lowest byte is then
/// that number in two's complement. Both are exact on every machine, and loops with it vectorize.
const TO_WHOLE: f32 = 12_582_912.0;

/// Number of words of `n` values: a scale per block, and a word per four values.
pub(super) fn n_words(n: usize) -> usize {
    n.div_ceil(BLOCK) + n.div_ceil(size_of::<f32>())
}

/// Appends the blocks of `values` to `words`, and leaves what rounding lost in `values`.
///
/// A block with a value that is not finite arrives as NaNs, so that a check for finite numbers finds
/// it. Nothing is left of such a block.
pub(super) fn encode(values: &mut [f32], words: &mut Vec<f32>) {
    for block in values.chunks_mut(BLOCK) {
        let scale = scale_of(block);
        let per_scale = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let mut bytes = [0; BLOCK];
        for (byte, value) in bytes.iter_mut().zip(block.iter_mut()) {
            let whole = (*value * per_scale).clamp(-MOST, MOST) + TO_WHOLE;
            *byte = whole.to_bits() as u8; // the lowest byte
            *value -= (whole - TO_WHOLE) * scale;
        }
        if scale.is_nan() {
            block.fill(0.0);
        }
        words.push(scale);
        let (fours, _) = bytes.as_chunks();
        let n_words = block.len().div_ceil(size_of::<f32>());
        words.extend(fours.iter().take(n_words).map(|four| f32::from_le_bytes(*four)));
    }
}

/// Decodes `n` values.
pub(super) fn decode(words: &[f32], n: usize) -> Vec<f32> {
    let mut values = Vec::with_capacity(n.next_multiple_of(BLOCK));
    for block in words.chunks(1 + BLOCK / size_of::<f32>()) {
        let Some((scale, words)) = block.split_first() else { break };
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        values.extend(bytes.map(|byte| f32::from(byte as i8) * scale)); // two's complement
    }
    values.truncate(n);
    values
}

/// Returns the scale of a block: NaN if a value is not finite or as large as the largest number, 0 if
/// all are too small for a scale.
fn scale_of(block: &[f32]) -> f32 {
    let largest = block.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
    let scale = largest / MOST;
    if !(scale * MOST).is_finite() || block.iter().any(|value| value.is_nan()) {
        return f32::NAN;
    }
    if scale < f32::MIN_POSITIVE { 0.0 } else { scale }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn there_and_back(values: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (mut left, mut words) = (values.to_vec(), Vec::new());
        encode(&mut left, &mut words);
        assert_eq!(words.len(), n_words(values.len()));
        (decode(&words, values.len()), left)
    }

    proptest! {
        /// Each value arrives within half a 127th of the largest of its block, and what is missing
        /// is left.
        #[test]
        fn values_arrive_within_half_a_step(
            values in prop::collection::vec(-1e3f32..1e3, 0..300),
            exponent in -30i32..30,
        ) {
            let values: Vec<f32> = values.iter().map(|x| x * 2f32.powi(exponent)).collect();
            let (arrived, left) = there_and_back(&values);
            prop_assert_eq!(arrived.len(), values.len());
            for (n, block) in values.chunks(BLOCK).enumerate() {
                let largest = block.iter().fold(0f32, |a, b| a.max(b.abs()));
                for (at, value) in (n * BLOCK..).zip(block) {
                    let lost = (value - arrived[at]).abs();
                    prop_assert!(lost <= largest / 253.9, "{} of {} lost {}", value, largest, lost);
                    prop_assert_eq!(left[at], value - arrived[at]);
                }
            }
        }
    }

    #[test]
    fn whole_multiples_of_the_scale_arrive_exactly() {
        let values: Vec<f32> = (-127..=127).flat_map(|x| [127.0, x as f32]).collect();
        let (arrived, left) = there_and_back(&values);
        assert_eq!(arrived, values);
        assert!(left.iter().all(|x| *x == 0.0));
        // Ties go to even.
        assert_eq!(there_and_back(&[127.0, 2.5, 3.5, -0.5, -1.5]).0, [127.0, 2.0, 4.0, 0.0, -2.0]);
    }

    #[test]
    fn what_is_not_finite_is_not_finite_at_the_other_end() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 2 * BLOCK];
            values[3] = bad;
            let (arrived, left) = there_and_back(&values);
            assert!(arrived[..BLOCK].iter().all(|x| x.is_nan()), "{bad}");
            assert!(arrived[BLOCK..].iter().all(|x| *x == 1.0), "{bad}");
            assert!(left.iter().all(|x| *x == 0.0), "{bad}");
        }
    }

    #[test]
    fn numbers_at_the_ends_of_the_range_arrive() {
        let large = f32::MAX / 2.0;
        let (arrived, left) = there_and_back(&[large, -large, 0.0]);
        assert!((arrived[0] / large - 1.0).abs() < 1e-6 && arrived[1] == -arrived[0]);
        assert!(left.iter().all(|x| x.is_finite()));
        assert!(there_and_back(&[f32::MAX, 1.0]).0.iter().all(|x| x.is_nan()));
        // Numbers that are too small for a scale are left for the next message.
        let tiny = [f32::from_bits(1), -1e-40, 0.0];
        assert_eq!(there_and_back(&tiny), (vec![0.0; 3], tiny.to_vec()));
    }
}
