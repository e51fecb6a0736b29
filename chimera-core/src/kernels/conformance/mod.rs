//! The suite that every implementation of [`Kernels`] calls, ours or a third party's.
//!
//! ```
//! use chimera_core::kernels::{conformance, reference::Reference};
//!
//! conformance::run(&Reference, 1e-6);
//! ```
//!
//! A case tries one function on several shapes, odd ones among them, with random operands of f32
//! precision, against [`Reference`] on the same operands. Each trial is made with operands in memory
//! of their own and with operands that are [`rows`](Kernels::rows) of larger tensors, twice each, and
//! must
//! - agree with the reference, in shape and within a tolerance;
//! - give the same bits both times;
//! - add to accumulators, which do not start at zero;
//! - leave the memory of all other operands as it was.

mod cases;

use std::fmt;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;

use super::reference::{Reference, Tensor};
use super::{DeviceError, Kernels};

pub use cases::cases;

/// Tries every case.
///
/// # Panics
/// If any fails or its relative error exceeds `tolerance`, with all that do.
pub fn run<K: Kernels>(kernels: &K, tolerance: f64) {
    let verdicts = cases().into_iter().map(|case| match case.check(kernels) {
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

/// The trials of one function of [`Kernels`].
pub struct Case<K: Kernels> {
    /// The function.
    pub name: &'static str,
    trials: fn(&mut Trials<'_, K>) -> Result<(), Failure>,
}

impl<K: Kernels> Case<K> {
    /// Makes all trials, up to the first failure. The operands are the same each time.
    pub fn check(&self, kernels: &K) -> Result<Worst, Failure> {
        let mut trials = Trials {
            kernels,
            rng: ChaCha8Rng::seed_from_u64(0),
            worst: Worst::default(),
        };
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

/// A case under way. Host tensors hold values that f32 has exactly.
struct Trials<'k, K: Kernels> {
    kernels: &'k K,
    rng: ChaCha8Rng,
    worst: Worst,
}

/// `trial!(trials, "label", [operands], [accumulators], |kernels| results)`: the host tensors so named
/// are, in the last part, tensors of the device under trial and then of the reference.
macro_rules! trial {
    ($trials:expr, $label:expr, [$($x:ident),*], [$($into:ident),*], |$k:ident| $results:expr) => {
        $trials.compare(
            &$label,
            [$(&$x),*],
            [$(&$into),*],
            |$k, [$($x),*], [$($into),*]| Ok($results),
            |$k, [$($x),*], [$($into),*]| Ok($results),
        )?
    };
}
use trial;

impl<K: Kernels> Trials<'_, K> {
    /// Standard normal elements.
    fn normal(&mut self, shape: &[usize]) -> Tensor {
        self.draw(shape, |rng| rng.sample(StandardNormal))
    }

    fn draw(&mut self, shape: &[usize], element: impl Fn(&mut ChaCha8Rng) -> f32) -> Tensor {
        let n = shape.iter().product();
        let data = (0..n).map(|_| element(&mut self.rng).into()).collect();
        Tensor::new(shape, data)
    }

    /// Classes below `n_classes`; every other one is class 0, so that there are repetitions.
    fn classes(&mut self, n: usize, n_classes: u32) -> Vec<u32> {
        let mut any = || self.rng.random_range(0..n_classes);
        (0..n).map(|i| if i % 2 == 0 { any() } else { 0 }).collect()
    }

    fn require(&self, holds: bool, at: &str, what: &str) -> Result<(), Failure> {
        let (at, what) = (at.to_string(), what.to_string());
        if holds {
            Ok(())
        } else {
            Err(Failure::Broken { at, what })
        }
    }

    /// One trial, see [`trial!`].
    fn compare<const N: usize, const M: usize, const R: usize>(
        &mut self,
        label: &str,
        operands: [&Tensor; N],
        accumulators: [&Tensor; M],
        device: impl Fn(&K, [&K::Tensor; N], [&mut K::Tensor; M]) -> super::Result<[K::Tensor; R]>,
        oracle: impl Fn(&Reference, [&Tensor; N], [&mut Tensor; M]) -> super::Result<[Tensor; R]>,
    ) -> Result<(), Failure> {
        let mut sums = accumulators.map(Tensor::clone);
        let results = oracle(&Reference, operands, sums.each_mut())?;
        let expected: Vec<Tensor> = results.into_iter().chain(sums).collect();

        for placement in [Placement::Whole, Placement::Rows] {
            let at = describe(label, placement, &operands, &accumulators);
            let first = self.call(&at, placement, operands, accumulators, &device)?;
            let second = self.call(&at, placement, operands, accumulators, &device)?;
            for (i, expected) in expected.iter().enumerate() {
                let at = format!("result {i} of {at}");
                let (shape, data) = &first[i];
                self.require(
                    bits(data) == bits(&second[i].1),
                    &at,
                    "two calls, other bits",
                )?;
                let shapes = format!("shape {shape:?} instead of {:?}", expected.shape);
                self.require(*shape == expected.shape, &at, &shapes)?;
                let error = relative_error(data, &expected.data);
                if error > self.worst.error {
                    self.worst = Worst { error, at };
                }
            }
        }
        Ok(())
    }

    /// The shapes and elements of the device's results, then of its accumulators.
    fn call<const N: usize, const M: usize, const R: usize>(
        &self,
        at: &str,
        placement: Placement,
        operands: [&Tensor; N],
        accumulators: [&Tensor; M],
        device: impl Fn(&K, [&K::Tensor; N], [&mut K::Tensor; M]) -> super::Result<[K::Tensor; R]>,
    ) -> Result<Vec<(Vec<usize>, Vec<f32>)>, Failure> {
        let mut wholes = Vec::with_capacity(N);
        let mut placed = Vec::with_capacity(N);
        for operand in operands {
            let (start, whole) = placement.surround(operand);
            let uploaded = self.upload(&whole)?;
            placed.push(match placement {
                Placement::Whole => uploaded.clone(),
                Placement::Rows => self.kernels.rows(&uploaded, start, operand.n_rows())?,
            });
            wholes.push((whole, uploaded));
        }
        let mut sums = Vec::with_capacity(M);
        for accumulator in accumulators {
            sums.push(self.upload(accumulator)?);
        }

        let mut sums_mut = sums.iter_mut();
        let results = device(
            self.kernels,
            std::array::from_fn(|i| &placed[i]),
            std::array::from_fn(|_| sums_mut.next().expect("M accumulators")),
        )?;

        for (i, (whole, uploaded)) in wholes.iter().enumerate() {
            let kept = bits(&self.kernels.download(uploaded)?) == bits(&f32s(whole));
            self.require(kept, at, &format!("operand {i} was written to"))?;
        }
        let results = results.iter().chain(&sums);
        results
            .map(|tensor| Ok((self.kernels.shape(tensor), self.kernels.download(tensor)?)))
            .collect()
    }

    fn upload(&self, tensor: &Tensor) -> super::Result<K::Tensor> {
        self.kernels.upload(&tensor.shape, &f32s(tensor))
    }
}

/// Where the operands of a trial lie.
#[derive(Clone, Copy, PartialEq)]
enum Placement {
    /// In memory of their own.
    Whole,
    /// Within a larger tensor, between elements that are not numbers: whoever reads them is found out.
    Rows,
}

impl Placement {
    /// The tensor to upload, and in which row of it `operand` starts.
    fn surround(self, operand: &Tensor) -> (usize, Tensor) {
        let (before, after) = match self {
            Placement::Whole => (0, 0),
            Placement::Rows => (1, 2),
        };
        let mut shape = operand.shape.clone();
        shape[0] += before + after;
        let nan = |rows| vec![f64::NAN; rows * operand.width()];
        (
            before,
            Tensor::new(
                &shape,
                [nan(before), operand.data.clone(), nan(after)].concat(),
            ),
        )
    }
}

fn describe(label: &str, placement: Placement, operands: &[&Tensor], into: &[&Tensor]) -> String {
    let shapes = operands
        .iter()
        .chain(into)
        .map(|tensor| format!("{:?}", tensor.shape));
    let shapes: Vec<String> = shapes.collect();
    let rows = if placement == Placement::Rows {
        ", operands are rows of larger tensors"
    } else {
        ""
    };
    format!("{label} {}{rows}", shapes.join(" "))
}

/// See [`Worst::error`].
fn relative_error(got: &[f32], expected: &[f64]) -> f64 {
    let largest = expected
        .iter()
        .fold(f64::MIN_POSITIVE, |largest, x| largest.max(x.abs()));
    let differences = got
        .iter()
        .zip(expected)
        .map(|(&got, x)| (f64::from(got) - x).abs());
    // Not f64::max, which passes over NaN.
    let worst = differences.fold(0.0, |worst, d| if d <= worst { worst } else { d });
    if worst.is_finite() {
        worst / largest
    } else {
        f64::INFINITY
    }
}

fn f32s(tensor: &Tensor) -> Vec<f32> {
    tensor.data.iter().map(|&x| x as f32).collect()
}

fn bits(data: &[f32]) -> Vec<u32> {
    data.iter().map(|x| x.to_bits()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_conforms() {
        run(&Reference, 1e-7);
    }

    #[test]
    fn an_error_is_relative_to_the_largest_magnitude() {
        assert_eq!(relative_error(&[1.0, -4.0], &[1.5, -4.0]), 0.125);
        assert_eq!(relative_error(&[0.0], &[0.0]), 0.0);
        assert!(relative_error(&[1e-9], &[0.0]) > 1.0);
        for wrong in [f32::NAN, f32::INFINITY] {
            assert_eq!(relative_error(&[wrong, 0.0], &[1.0, 1.0]), f64::INFINITY);
            assert_eq!(relative_error(&[0.0, wrong], &[1.0, 1.0]), f64::INFINITY);
        }
    }
}
