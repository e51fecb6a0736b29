//! Dropout, from numbers alone.

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
        let scale = by.scale() as f32;
        let each = y.iter_mut().zip(x).enumerate();
        match residual {
            None => {
                for (i, (y, &x)) in each {
                    y.write(kept(&by, i, x, scale));
                }
            }
            Some(residual) => {
                for ((i, (y, &x)), residual) in each.zip(residual) {
                    y.write(kept(&by, i, x, scale) + residual);
                }
            }
        }
    }
}

/// Element `i`, whose value is `x`, after the choice.
#[inline(always)]
fn kept(by: &Dropout, i: usize, x: f32, scale: f32) -> f32 {
    if by.keeps(i as u64) { x * scale } else { 0.0 }
}
