//! Samples made by a function.

use std::io;

use super::Data;

/// Makes a `Data` with `n_targets` targets per sample. `sample` takes the numbers of a step and a
/// sample, and appends the inputs and targets.
///
/// ```
/// use chimera_engine::stage::{Data, samples};
///
/// let squares = samples(1, |step, sample, input: &mut Vec<f64>, target: &mut Vec<f64>| {
///     let x = (8 * step + sample) as f64;
///     input.push(x);
///     target.push(x * x);
/// });
/// assert_eq!(squares.n_targets(), 1);
/// ```
pub fn samples<I>(
    n_targets: usize,
    sample: impl Fn(u64, u64, &mut Vec<I>, &mut Vec<I>) + Sync,
) -> impl Data<I> {
    Samples { n_targets, sample }
}

struct Samples<F> {
    n_targets: usize,
    sample: F,
}

impl<I, F: Fn(u64, u64, &mut Vec<I>, &mut Vec<I>) + Sync> Data<I> for Samples<F> {
    fn sample(
        &self,
        step: u64,
        sample: u64,
        input: &mut Vec<I>,
        target: &mut Vec<I>,
    ) -> io::Result<()> {
        (self.sample)(step, sample, input, target);
        Ok(())
    }

    fn n_targets(&self) -> usize {
        self.n_targets
    }
}
