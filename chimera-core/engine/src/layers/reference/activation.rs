//! Functions of one number, and their derivatives.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use crate::layers::Activation;

const GELU_CUBIC: f64 = 0.044715;

pub(super) fn value(f: Activation, x: f64) -> f64 {
    match f {
        Activation::GeluTanh => 0.5 * x * (1.0 + inner(x).tanh()),
        Activation::Gelu => x * normal_cdf(x),
        Activation::Tanh => x.tanh(),
        Activation::Silu => x * sigmoid(x),
    }
}

/// - with `u = inner(x)`: `(1 + tanh u)/2 + x/2 (1 - tanh² u) u'`
/// - `Φ(x) + x φ(x)`, the normal distribution and its density
/// - `1 - tanh² x`
/// - `σ(x) + x σ(x) (1 - σ(x))`, with `1 - σ(x) = σ(-x)`
pub(super) fn slope(f: Activation, x: f64) -> f64 {
    match f {
        Activation::GeluTanh => {
            let du = (2.0 / PI).sqrt() * (1.0 + 3.0 * GELU_CUBIC * x.powi(2));
            let t = inner(x).tanh();
            0.5 * (1.0 + t) + 0.5 * x * (1.0 - t.powi(2)) * du
        }
        Activation::Gelu => normal_cdf(x) + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt(),
        Activation::Tanh => 1.0 - x.tanh().powi(2),
        Activation::Silu => sigmoid(x) * (1.0 + x * sigmoid(-x)),
    }
}

/// `u = √(2/π) (x + 0.044715 x³)`
fn inner(x: f64) -> f64 {
    (2.0 / PI).sqrt() * (x + GELU_CUBIC * x.powi(3))
}

/// `σ(x) = 1/(1 + exp(-x))`
fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `Φ(x) = (1 + erf(x/√2))/2`, by `erfc`, which keeps its digits where `erf` is near -1
fn normal_cdf(x: f64) -> f64 {
    0.5 * libm::erfc(-x * FRAC_1_SQRT_2)
}
