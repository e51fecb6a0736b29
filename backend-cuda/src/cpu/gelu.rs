//! GELU in the form `x σ(2u)`, `u = √(2/π) (x + 0.044715 x³)`: equal to the one with `tanh`, with one
//! exponential and no cancellation.

use std::f32::consts::{FRAC_2_SQRT_PI, SQRT_2};
use std::mem::MaybeUninit;

use candle_core::{Result, Tensor};

use super::math::exp;
use super::memory::{Output, values};
use super::{PIECE, Piece, run_all};

// 2 √(2/π), and that times the weight of the cube.
const LINEAR: f32 = FRAC_2_SQRT_PI * SQRT_2;
const CUBIC: f32 = LINEAR * 0.044_715;

pub(crate) fn forward(x: &Tensor) -> Result<Tensor> {
    let shape = x.shape();
    let x = values(x)?;
    let mut y = Output::new(x.len());
    let pieces = y.slots().chunks_mut(PIECE).zip(x.chunks(PIECE));
    run_all(pieces.map(|(y, x)| Forward { y, x }));
    // SAFETY: each element was written.
    unsafe { y.written(shape) }
}

pub(crate) fn backward(dy: &Tensor, x: &Tensor) -> Result<(Tensor, Tensor)> {
    let shape = x.shape();
    let (dy, x) = (values(dy)?, values(x)?);
    assert_eq!(dy.len(), x.len());
    let (mut dx, mut y) = (Output::new(x.len()), Output::new(x.len()));
    let outputs = dx.slots().chunks_mut(PIECE).zip(y.slots().chunks_mut(PIECE));
    let inputs = dy.chunks(PIECE).zip(x.chunks(PIECE));
    run_all(outputs.zip(inputs).map(|((dx, y), (dy, x))| Backward { dx, y, dy, x }));
    // SAFETY: each element of both was written.
    unsafe { Ok((dx.written(shape)?, y.written(shape)?)) }
}

type Slots<'a> = &'a mut [MaybeUninit<f32>];

struct Forward<'a> {
    y: Slots<'a>,
    x: &'a [f32],
}

impl Piece for Forward<'_> {
    #[inline(always)]
    fn run(self) {
        for (y, &x) in self.y.iter_mut().zip(self.x) {
            y.write(x * sigmoid(x).0);
        }
    }
}

struct Backward<'a> {
    dx: Slots<'a>,
    y: Slots<'a>,
    dy: &'a [f32],
    x: &'a [f32],
}

impl Piece for Backward<'_> {
    #[inline(always)]
    fn run(self) {
        let outputs = self.dx.iter_mut().zip(self.y);
        for ((dx, y), (dy, &x)) in outputs.zip(self.dy.iter().zip(self.x)) {
            let (s, e) = sigmoid(x);
            let slope = (3.0 * CUBIC * x).mul_add(x, LINEAR);
            // σ' = σ (1 - σ) = σ² e
            dx.write(dy * (x * slope * (e * s)).mul_add(s, s));
            y.write(x * s);
        }
    }
}

/// `σ(2u)` and `exp(-2u)`.
#[inline(always)]
fn sigmoid(x: f32) -> (f32, f32) {
    let e = exp(-x * (CUBIC * x).mul_add(x, LINEAR));
    (1.0 / (1.0 + e), e)
}
