//! Dropout by counter-based random numbers.

use std::mem::MaybeUninit;

use candle_core::{Result, Tensor};
use chimera_core::layers::Dropout;

use super::memory::{Output, values};
use super::{PIECE, Piece, run_all};

pub(crate) fn forward(x: &Tensor, by: &Dropout, residual: Option<&Tensor>) -> Result<Tensor> {
    let shape = x.shape();
    let x = values(x)?;
    let residual = residual.map(values).transpose()?;
    let mut y = Output::new(x.len());
    let pieces = y.slots().chunks_mut(PIECE).zip(x.chunks(PIECE)).enumerate();
    run_all(pieces.map(|(piece, (y, x))| {
        let start = piece * PIECE;
        Drop {
            residual: residual.as_ref().map(|residual| &residual[start..][..x.len()]),
            y,
            x,
            by: Dropout { first: by.first.wrapping_add(start as u64), ..*by },
        }
    }));
    // SAFETY: each element was written.
    unsafe { y.written(shape) }
}

struct Drop<'a> {
    y: &'a mut [MaybeUninit<f32>],
    x: &'a [f32],
    by: Dropout,
    residual: Option<&'a [f32]>,
}

impl Piece for Drop<'_> {
    #[inline(always)]
    fn run(self) {
        let Drop { y, x, by, residual } = self;
        let mut factors = [0.0; AT_ONCE];
        for (nth, (y, x)) in y.chunks_mut(AT_ONCE).zip(x.chunks(AT_ONCE)).enumerate() {
            let start = nth * AT_ONCE;
            let factors = factors_of(&by, start, &mut factors[..x.len()]);
            let each = y.iter_mut().zip(x).zip(factors);
            match residual {
                None => {
                    for ((y, x), factor) in each {
                        y.write(x * *factor);
                    }
                }
                Some(residual) => {
                    for (((y, x), factor), residual) in each.zip(&residual[start..]) {
                        y.write(x * *factor + residual);
                    }
                }
            }
        }
    }
}

/// Elements whose factors are computed at a time: they stay in the first-level cache.
pub(super) const AT_ONCE: usize = 256;

/// Returns the factors of elements from `start` on that fit, at most [`AT_ONCE`].
#[inline(always)]
pub(super) fn factors_of<'f>(by: &Dropout, start: usize, factors: &'f mut [f32]) -> &'f [f32] {
    let (threshold, scale) = (u32::from(by.threshold()), by.scale() as f32);
    let factor = |bits: u32| if bits >= threshold { scale } else { 0.0 };
    let by = Dropout { first: by.first.wrapping_add(start as u64), ..*by };
    let n_before = (by.first & 1) as usize;
    let mut words = [0; AT_ONCE / 2 + 1];
    let mut words = &mut words[..(n_before + factors.len()).div_ceil(2)];
    by.fill(words);
    let (before, rest) = factors.split_at_mut(n_before.min(factors.len()));
    if let [before] = before {
        *before = factor(words[0] >> 16);
        words = &mut words[1..];
    }
    let (pairs, last) = rest.as_chunks_mut::<2>();
    for (pair, word) in pairs.iter_mut().zip(&*words) {
        *pair = [factor(word & 0xFFFF), factor(word >> 16)];
    }
    if let [last] = last {
        *last = factor(words[pairs.len()] & 0xFFFF);
    }
    factors
}
