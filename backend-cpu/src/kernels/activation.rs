//! Elementwise functions. GPT-2's GELU takes the form `x σ(2u)`, `u = √(2/π) (x + 0.044715 x³)`.
//! That equals the form with `tanh`, with one exponential and no cancellation.

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use candle_core::{Result, Tensor};
use chimera_core::layers::Activation;

use super::math::exp;
use super::memory::{Output, values};
use super::{PIECE, Piece, run_all};

/// Evaluates an expression over the [`Function`] of an [`Activation`].
macro_rules! with_function {
    ($activation:expr, $F:ident => $work:expr) => {
        with_function!($activation, $F => $work, [GeluTanh, Gelu, Tanh, Silu])
    };
    ($activation:expr, $F:ident => $work:expr, [$($name:ident),*]) => {
        match $activation {
            $(Activation::$name => {
                type $F = $crate::kernels::activation::$name;
                $work
            })*
        }
    };
}
pub(super) use with_function;

// 2 √(2/π), and the same times the weight of the cube.
const LINEAR: f32 = FRAC_2_SQRT_PI * SQRT_2;
const CUBIC: f32 = LINEAR * 0.044_715;

pub(crate) fn forward(x: &Tensor, f: Activation) -> Result<Tensor> {
    with_function!(f, F => each::<F>(x))
}

pub(crate) fn backward(dy: &Tensor, x: &Tensor, f: Activation) -> Result<(Tensor, Tensor)> {
    with_function!(f, F => each_dx::<F>(dy, x))
}

/// A function and its slope. Both must be `#[inline(always)]`, see [`Piece`].
pub(super) trait Function: Send {
    fn both(x: f32) -> (f32, f32);
}

/// With `e = exp(-2u)`: `σ(2u) = 1/(1 + e)` and `σ' = σ (1 - σ) = σ² e`.
pub(super) struct GeluTanh;

impl Function for GeluTanh {
    #[inline(always)]
    fn both(x: f32) -> (f32, f32) {
        let e = exp(-x * (CUBIC * x).mul_add(x, LINEAR));
        let s = 1.0 / (1.0 + e);
        let slope = (3.0 * CUBIC * x).mul_add(x, LINEAR);
        (x * s, (x * slope * (e * s)).mul_add(s, s))
    }
}

/// `x Φ(x)` and `Φ(x) + x φ(x)`, with `Φ` from a polynomial times the exponential that `φ` has too
/// (Abramowitz & Stegun, 7.1.26: to 1.5e-7).
pub(super) struct Gelu;

impl Function for Gelu {
    #[inline(always)]
    fn both(x: f32) -> (f32, f32) {
        let z = x.abs() * FRAC_1_SQRT_2;
        let e = exp(-z * z);
        let t = 1.0 / 0.327_591_1f32.mul_add(z, 1.0);
        let p = 1.061_405_4f32
            .mul_add(t, -1.453_152)
            .mul_add(t, 1.421_413_7)
            .mul_add(t, -0.284_496_74)
            .mul_add(t, 0.254_829_6);
        let tail = 0.5 * p * t * e;
        let cdf = if x < 0.0 { tail } else { 1.0 - tail };
        let density = 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * e;
        (x * cdf, x.mul_add(density, cdf))
    }
}

/// Only small tensors need it, so the standard library's is fast enough.
pub(super) struct Tanh;

impl Function for Tanh {
    #[inline(always)]
    fn both(x: f32) -> (f32, f32) {
        // 1 - tanh² would cancel if tanh is near 1.
        let e = exp(-2.0 * x.abs());
        (x.tanh(), 4.0 * e / ((1.0 + e) * (1.0 + e)))
    }
}

/// With `e = exp(-x)` and `σ = 1/(1 + e)`: `x σ`, and `σ + x σ (1 - σ)` where `1 - σ = e σ`.
pub(super) struct Silu;

impl Function for Silu {
    #[inline(always)]
    fn both(x: f32) -> (f32, f32) {
        let e = exp(-x);
        let s = 1.0 / (1.0 + e);
        (x * s, (x * s).mul_add(e * s, s))
    }
}

fn each<F: Function>(x: &Tensor) -> Result<Tensor> {
    let shape = x.shape();
    let x = values(x)?;
    let mut y = Output::new(x.len());
    let pieces = y.slots().chunks_mut(PIECE).zip(x.chunks(PIECE));
    run_all(pieces.map(|(y, x)| Forward { y, x, function: PhantomData::<F> }));
    // SAFETY: each element was written.
    unsafe { y.written(shape) }
}

fn each_dx<F: Function>(dy: &Tensor, x: &Tensor) -> Result<(Tensor, Tensor)> {
    let shape = x.shape();
    let (dy, x) = (values(dy)?, values(x)?);
    assert_eq!(dy.len(), x.len());
    let (mut dx, mut y) = (Output::new(x.len()), Output::new(x.len()));
    let outputs = dx.slots().chunks_mut(PIECE).zip(y.slots().chunks_mut(PIECE));
    let inputs = dy.chunks(PIECE).zip(x.chunks(PIECE));
    let pieces = outputs.zip(inputs);
    run_all(pieces.map(|((dx, y), (dy, x))| Backward { dx, y, dy, x, function: PhantomData::<F> }));
    // SAFETY: each element of both was written.
    unsafe { Ok((dx.written(shape)?, y.written(shape)?)) }
}

type Slots<'a> = &'a mut [MaybeUninit<f32>];

struct Forward<'a, F> {
    y: Slots<'a>,
    x: &'a [f32],
    function: PhantomData<F>,
}

impl<F: Function> Piece for Forward<'_, F> {
    #[inline(always)]
    fn run(self) {
        for (y, &x) in self.y.iter_mut().zip(self.x) {
            y.write(F::both(x).0);
        }
    }
}

struct Backward<'a, F> {
    dx: Slots<'a>,
    y: Slots<'a>,
    dy: &'a [f32],
    x: &'a [f32],
    function: PhantomData<F>,
}

impl<F: Function> Piece for Backward<'_, F> {
    #[inline(always)]
    fn run(self) {
        let outputs = self.dx.iter_mut().zip(self.y);
        for ((dx, y), (dy, &x)) in outputs.zip(self.dy.iter().zip(self.x)) {
            let (value, slope) = F::both(x);
            dx.write(dy * slope);
            y.write(value);
        }
    }
}
