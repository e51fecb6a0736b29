//! Weights of 8 bits with one scale for each output (Dettmers et al., LLM.int8(), 2022), without
//! its outliers: `CB` and `SCB` of the package bitsandbytes.

use super::{absolute_maximum, scale};

/// The reciprocal of the largest code.
const RECIPROCAL: f32 = 1.0 / 127.0;

/// Appends the codes of all rows of `inputs` values, and then their scales.
pub(super) fn pack(values: &[f32], inputs: usize, into: &mut Vec<u8>) {
    let mut scales = Vec::new();
    for row in values.chunks(inputs.max(1)) {
        let scale = absolute_maximum(row);
        scales.extend(scale.to_le_bytes());
        let factor = 127.0 / scale;
        // A row of zeros has no factor; casts turn its NaN into 0.
        into.extend(row.iter().map(|x| (x * factor).round_ties_even() as i8 as u8));
    }
    into.append(&mut scales);
}

/// Writes the elements from `first` on.
#[inline(always)]
pub(super) fn unpack(codes: &[u8], scales: &[u8], inputs: usize, first: usize, into: &mut [f32]) {
    let mut done = 0;
    while done < into.len() {
        let at = first + done;
        let n = (inputs - at % inputs).min(into.len() - done);
        let scale = scale(scales, at / inputs);
        for (x, code) in into[done..done + n].iter_mut().zip(&codes[at..at + n]) {
            *x = f32::from(*code as i8) * scale * RECIPROCAL;
        }
        done += n;
    }
}
