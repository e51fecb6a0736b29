//! The conformance suite for implementations of [`Device`], ours or a third party's.
//!
//! ```
//! use chimera_engine::device::{conformance, reference::Reference};
//!
//! conformance::run(&Reference, 1e-6);
//! ```
//!
//! Each case tries one function on several shapes, including empty, odd and large ones, with random
//! operands of f32 precision, and compares it with the [`reference`](super::reference) on the same
//! operands. Each trial runs twice with operands in memory of their own, and twice with operands
//! that are [`rows`](Device::rows) of larger tensors. It must
//! - agree with the reference, in shape and within a tolerance;
//! - give the same bits both times;
//! - add to accumulators, which do not start at zero;
//! - leave the memory of all other operands as it was.

mod memory;
mod newton_schulz;
mod optimizers;
mod sums;
mod transfers;
pub(crate) mod trials;

use std::fmt;

use trials::Trials;

use super::{Device, DeviceError};

/// Runs every case.
///
/// # Panics
/// If any case fails or its relative error exceeds `tolerance`; the message lists all of them.
pub fn run<D: Device>(device: &D, tolerance: f64) {
    run_cases(device, cases(), tolerance, |x| x);
}

/// Returns the cases, one for each function that the engine uses.
pub fn cases<D: Device>() -> Vec<Case<D>> {
    let table: [(&'static str, fn(&mut Trials<'_, D>) -> Outcome); 19] = [
        ("upload", transfers::upload),
        ("download_into", transfers::download_into),
        ("download_all", transfers::download_all),
        ("upload_words", transfers::words),
        ("fetch", transfers::fetch),
        ("offload", transfers::offload),
        ("import", transfers::import),
        ("clock", transfers::clock),
        ("zeros", memory::zeros),
        ("rows", memory::rows),
        ("reshape", memory::reshape),
        ("join", memory::join),
        ("accumulate", sums::accumulate),
        ("squared_norms", sums::squared_norms),
        ("adamw", optimizers::adamw),
        ("lamb", optimizers::lamb),
        ("sgd", optimizers::sgd),
        ("product", optimizers::product),
        ("newton_schulz", newton_schulz::newton_schulz),
    ];
    table.into_iter().map(|(name, trials)| Case { name, trials }).collect()
}

/// Runs these cases on operands that `round` was applied to.
///
/// # Panics
/// If any case fails or its relative error exceeds `tolerance`; the message lists all of them.
pub(crate) fn run_cases<D: Device>(
    device: &D,
    cases: Vec<Case<D>>,
    tolerance: f64,
    round: fn(f32) -> f32,
) {
    let verdicts = cases.into_iter().map(|case| match case.check(device, round) {
        Ok(worst) if worst.error <= tolerance => None,
        Ok(worst) => Some(format!("{}: {worst}", case.name)),
        Err(failure) => Some(format!("{}: {failure}", case.name)),
    });
    let failures: Vec<String> = verdicts.flatten().collect();
    assert!(
        failures.is_empty(),
        "{} differs from the reference (tolerance {tolerance:e}):\n{}",
        device.name(),
        failures.join("\n")
    );
}

/// The trials of one function of a device.
pub struct Case<D: Device> {
    /// Name of the function.
    pub name: &'static str,
    pub(crate) trials: fn(&mut Trials<'_, D>) -> Outcome,
}

impl<D: Device> Case<D> {
    /// Runs all trials, up to the first failure, on operands that `round` was applied to. The
    /// operands are the same each time.
    pub fn check(&self, device: &D, round: fn(f32) -> f32) -> Result<Worst, Failure> {
        let mut trials = Trials::begin(device, round);
        (self.trials)(&mut trials)?;
        Ok(trials.worst)
    }
}

/// The result of a case with the largest error.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Worst {
    /// The largest difference of any element, divided by the largest magnitude in the reference's
    /// tensor; zeros must therefore be exact. Infinite if an element is not finite.
    pub error: f64,
    /// The result and its operands, in words.
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

pub(crate) type Outcome = Result<(), Failure>;

/// The reason that a case has no relative error.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The device returned an error.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A rule other than accuracy does not hold.
    #[error("{at}: {what}")]
    Broken {
        /// The operands, in words.
        at: String,
        /// The violation that was seen.
        what: String,
    },
}

/// Shapes of operands without further structure: one element, odd numbers, more than any tile.
pub(crate) const SHAPES: [&[usize]; 7] =
    [&[1], &[7], &[1027], &[1, 1], &[1, 130], &[5, 3], &[130, 257]];

/// Shapes without elements, for which a device may have nothing to do.
const EMPTY: [&[usize]; 3] = [&[0], &[0, 3], &[3, 0]];

/// Shape of a large tensor: more than 2^20 elements, and two primes.
const LARGE: &[usize] = &[1031, 1033];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::reference::Reference;

    #[test]
    fn reference_conforms() {
        run(&Reference, 1e-7);
    }
}
