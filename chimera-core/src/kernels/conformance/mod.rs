//! The suite that every implementation of [`Kernels`] calls, ours or a third party's.
//!
//! ```
//! use chimera_core::kernels::{conformance, reference::Reference};
//!
//! conformance::run(&Reference, 1e-6);
//! ```
//!
//! A case tries one function on several shapes, odd ones among them, with random operands of f32
//! precision, against the [`reference`](super::reference) on the same operands. Each trial is made with operands in memory
//! of their own and with operands that are [`rows`](Kernels::rows) of larger tensors, twice each, and
//! must
//! - agree with the reference, in shape and within a tolerance;
//! - give the same bits both times;
//! - add to accumulators, which do not start at zero;
//! - leave the memory of all other operands as it was.

mod attention;
mod dense;
mod memory;
mod norm;
mod optimizers;
mod pointwise;
mod trials;

use std::fmt;

use super::{DeviceError, Kernels};

use trials::Trials;

/// Tries every case.
///
/// # Panics
/// If any fails or its relative error exceeds `tolerance`, with all that do.
pub fn run<K: Kernels>(kernels: &K, tolerance: f64) {
    run_rounded(kernels, tolerance, |x| x);
}

/// [`run`] on operands that are rounded first: to what the device keeps of them, if that is less than f32.
///
/// # Panics
/// As [`run`].
pub fn run_rounded<K: Kernels>(kernels: &K, tolerance: f64, round: fn(f32) -> f32) {
    let verdicts = cases().into_iter().map(|case| match case.check(kernels, round) {
        Ok(worst) if worst.error <= tolerance => None,
        Ok(worst) => Some(format!("{}: {worst}", case.name)),
        Err(failure) => Some(format!("{}: {failure}", case.name)),
    });
    let failures: Vec<String> = verdicts.flatten().collect();
    assert!(
        failures.is_empty(),
        "{} differs from the reference (tolerance {tolerance:e}):\n{}",
        kernels.device(),
        failures.join("\n")
    );
}

/// One case per function of [`Kernels`], in its order, and the head of a model, where several work together.
pub fn cases<K: Kernels>() -> Vec<Case<K>> {
    let table: [(&'static str, fn(&mut Trials<'_, K>) -> Outcome); 25] = [
        ("upload", memory::upload),
        ("zeros", memory::zeros),
        ("rows", memory::rows),
        ("reshape", memory::reshape),
        ("join", memory::join),
        ("accumulate", memory::accumulate),
        ("squared_norms", pointwise::squared_norms),
        ("embedding", dense::embedding),
        ("embedding_dw", dense::embedding_dw),
        ("linear", dense::linear),
        ("linear_dx", dense::linear_dx),
        ("linear_dw", dense::linear_dw),
        ("layer_norm", norm::layer_norm),
        ("layer_norm_dx", norm::layer_norm_dx),
        ("layer_norm_dw", norm::layer_norm_dw),
        ("activation", pointwise::activation),
        ("activation_dx", pointwise::activation_dx),
        ("dropout", pointwise::dropout),
        ("attention", attention::attention),
        ("attention_dx", attention::attention_dx),
        ("cross_entropy", norm::cross_entropy),
        ("adamw", optimizers::adamw),
        ("lamb", optimizers::lamb),
        ("sgd", optimizers::sgd),
        ("head", norm::head),
    ];
    table.into_iter().map(|(name, trials)| Case { name, trials }).collect()
}

/// The trials of one function of [`Kernels`].
pub struct Case<K: Kernels> {
    /// The function.
    pub name: &'static str,
    trials: fn(&mut Trials<'_, K>) -> Outcome,
}

impl<K: Kernels> Case<K> {
    /// Makes all trials, up to the first failure, on operands that `round` was applied to. They are the
    /// same each time.
    pub fn check(&self, kernels: &K, round: fn(f32) -> f32) -> Result<Worst, Failure> {
        let mut trials = Trials::begin(kernels, round);
        (self.trials)(&mut trials)?;
        Ok(trials.worst)
    }
}

/// The result of a case that lies farthest from the reference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Worst {
    /// The largest difference of any element, over the largest magnitude in the reference's tensor. So
    /// a tensor that should be all zeros must be. Infinite if an element is not finite.
    pub error: f64,
    /// Which result, on which operands.
    pub at: String,
}

impl fmt::Display for Worst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "relative error {:.1e}", self.error)?;
        if !self.at.is_empty() {
            write!(f, " in {}", self.at)?;
        }
        Ok(())
    }
}

type Outcome = Result<(), Failure>;

/// Why a case has no relative error.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The device gave up.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A rule other than accuracy does not hold.
    #[error("{at}: {what}")]
    Broken {
        /// On which operands.
        at: String,
        /// What was seen.
        what: String,
    },
}

/// Extents of everything that has no more structure: one element, odd numbers, more than any tile.
const SHAPES: [&[usize]; 6] = [&[1], &[7], &[1, 1], &[1, 130], &[5, 3], &[130, 257]];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::reference::Reference;

    #[test]
    fn reference_conforms() {
        run(&Reference, 1e-7);
    }
}
