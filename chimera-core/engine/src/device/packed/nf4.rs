//! Weights of 4 bits that are quantiles of a normal distribution (Dettmers et al., QLoRA, 2023), in
//! the order and with the roundings of the package bitsandbytes.

use super::dynamic_map::DYNAMIC_MAP;
use super::{absolute_maximum, scale};

/// Weights that share a scale.
pub(super) const BLOCK: usize = 64;
/// Scales that share a scale, under double quantisation.
pub(super) const SCALE_BLOCK: usize = 256;
/// Scales are clamped to it before their reciprocal is taken.
const LEAST_SCALE: f32 = 1e-38;

/// The values of the 16 codes.
const VALUES: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The values of the two codes in a byte; the upper half comes first.
static PAIRS: [[f32; 2]; 256] = pairs();

const fn pairs() -> [[f32; 2]; 256] {
    let mut pairs = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [VALUES[byte >> 4], VALUES[byte & 15]];
        byte += 1;
    }
    pairs
}

/// Appends the codes of all values, and then the scale of each block.
pub(super) fn pack(values: &[f32], into: &mut Vec<u8>) {
    let scales = pack_codes(values, into);
    into.extend(scales.into_iter().flat_map(f32::to_le_bytes));
}

/// Like [`pack`], with scales in 8 bits: less their mean, in blocks with a scale each. The mean
/// follows the scales of the blocks.
pub(super) fn pack_double(values: &[f32], into: &mut Vec<u8>) {
    let scales = pack_codes(values, into);
    let sum: f64 = scales.iter().map(|scale| f64::from(*scale)).sum();
    let mean = (sum / scales.len().max(1) as f64) as f32;
    let mut outer = Vec::new();
    for block in scales.chunks(SCALE_BLOCK) {
        let block: Vec<f32> = block.iter().map(|scale| scale - mean).collect();
        let most = absolute_maximum(&block);
        outer.push(most);
        into.extend(block.iter().map(|x| nearest(if most > 0.0 { x / most } else { 0.0 })));
    }
    outer.push(mean);
    into.extend(outer.into_iter().flat_map(f32::to_le_bytes));
}

/// Appends the codes of all values, two to a byte, and returns the scale of each block.
fn pack_codes(values: &[f32], into: &mut Vec<u8>) -> Vec<f32> {
    let (mut codes, mut scales) = (Vec::with_capacity(values.len() + 1), Vec::new());
    for block in values.chunks(BLOCK) {
        let most = absolute_maximum(block);
        let divisor = most.max(LEAST_SCALE);
        if block.len() == BLOCK {
            scales.push(most);
            let reciprocal = 1.0 / divisor;
            codes.extend(block.iter().map(|x| code(x * reciprocal)));
        } else {
            scales.push(divisor);
            codes.extend(block.iter().map(|x| code(x / divisor)));
        }
    }
    if codes.len() % 2 == 1 {
        codes.push(code(0.0));
    }
    into.extend(codes.as_chunks().0.iter().map(|[upper, lower]| upper << 4 | lower));
    scales
}

/// Returns the code of the value nearest to `x`; of two that are as near, the lower.
fn code(x: f32) -> u8 {
    let is_below = |pair: &&[f32]| (pair[0] + pair[1]) / 2.0 < x;
    VALUES.windows(2).take_while(is_below).count() as u8
}

/// Returns the code of the entry of the dynamic map nearest to `x`; of two that are as near, the
/// lower.
fn nearest(x: f32) -> u8 {
    let upper = DYNAMIC_MAP.partition_point(|entry| *entry <= x).clamp(1, 255);
    let is_upper = (DYNAMIC_MAP[upper] - x).abs() < (x - DYNAMIC_MAP[upper - 1]).abs();
    (if is_upper { upper } else { upper - 1 }) as u8
}

/// Returns a block's scale under double quantisation.
#[inline(always)]
pub(super) fn double_scale(codes: &[u8], scales: &[u8], block: usize) -> f32 {
    let mean = scale(scales, scales.len() / size_of::<f32>() - 1);
    DYNAMIC_MAP[usize::from(codes[block])] * scale(scales, block / SCALE_BLOCK) + mean
}

/// Writes the elements from `first` on.
#[inline(always)]
pub(super) fn unpack(codes: &[u8], scale: impl Fn(usize) -> f32, first: usize, into: &mut [f32]) {
    let mut done = 0;
    while done < into.len() {
        let at = first + done;
        let n = (BLOCK - at % BLOCK).min(into.len() - done);
        unpack_block(codes, scale(at / BLOCK), at, &mut into[done..done + n]);
        done += n;
    }
}

/// Writes elements of one block, from `first` on.
#[inline(always)]
fn unpack_block(codes: &[u8], scale: f32, first: usize, into: &mut [f32]) {
    let (half, rest) = into.split_at_mut(first % 2);
    if let [half] = half {
        *half = PAIRS[usize::from(codes[first / 2])][1] * scale;
    }
    let codes = &codes[first.div_ceil(2)..];
    let (pairs, last) = rest.as_chunks_mut();
    for (pair, code) in pairs.iter_mut().zip(codes) {
        *pair = PAIRS[usize::from(*code)].map(|x| x * scale);
    }
    if let [last] = last {
        *last = PAIRS[usize::from(codes[pairs.len()])][0] * scale;
    }
}
