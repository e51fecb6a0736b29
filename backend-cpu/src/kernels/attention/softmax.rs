//! The softmax of scores.

use std::ops::Range;

use chimera_core::layers::Dropout;

use super::super::dropout::{AT_ONCE, factors_of};
use super::super::math::{LANES, exp_sum, max};

/// Multiplies each weight by its dropout factor.
#[inline(always)]
pub(super) fn drop_weights(row: &mut [f32], by: &Dropout) {
    let mut factors = [0.0; AT_ONCE];
    for (nth, row) in row.chunks_mut(AT_ONCE).enumerate() {
        let factors = factors_of(by, nth * AT_ONCE, &mut factors[..row.len()]);
        for (weight, factor) in row.iter_mut().zip(factors) {
            *weight *= factor;
        }
    }
}

/// Turns the `live` scores into weights that are not yet divided by their sum, and the scores that
/// the mask hides into 0. Returns the sum, and the greatest score, whose weight is 1.
#[inline(always)]
pub(super) fn softmax(row: &mut [f32], live: Range<usize>, scale: f32) -> (f32, f32) {
    let (before, row) = row.split_at_mut(live.start);
    before.fill(0.0);
    // Whole vectors: hidden scores among them count as 0.
    let live = live.len();
    let vectors = live.next_multiple_of(LANES).min(row.len());
    row[live..vectors].fill(f32::NEG_INFINITY);
    let highest = scale * max(&row[..vectors]);
    let sum = exp_sum(&mut row[..vectors], scale, highest);
    row[live..].fill(0.0);
    (sum, highest)
}
