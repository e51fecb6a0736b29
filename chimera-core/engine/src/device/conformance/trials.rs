//! One call of a function on a device and on the reference, and the comparison of both.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;

use super::{Failure, Outcome, Worst};
use crate::device::reference::{Reference, Tensor};
use crate::device::{Device, Result};

/// The state of a running case. Host tensors hold values that f32 represents exactly.
pub(crate) struct Trials<'k, D: Device> {
    pub(crate) device: &'k D,
    /// Rounding applied to the elements of operands.
    round: fn(f32) -> f32,
    rng: ChaCha8Rng,
    pub(crate) worst: Worst,
}

/// `trial!(trials, "label", [operands], [accumulators], |device| results)`: in `results` the names
/// of the operands and accumulators stand for tensors of the tested device, and then for tensors of
/// the reference.
macro_rules! trial {
    ($trials:expr, $label:expr, [$($x:ident),*], [$($into:ident),*], |$device:ident| $results:expr) => {
        $trials.compare(
            &$label,
            [$(&$x),*],
            [$(&$into),*],
            |$device, [$($x),*], [$($into),*]| Ok($results),
            |$device, [$($x),*], [$($into),*]| Ok($results),
        )?
    };
}
pub(crate) use trial;

impl<'k, D: Device> Trials<'k, D> {
    pub(crate) fn begin(device: &'k D, round: fn(f32) -> f32) -> Self {
        Trials { device, round, rng: ChaCha8Rng::seed_from_u64(0), worst: Worst::default() }
    }

    /// Draws standard normal elements.
    pub(crate) fn normal(&mut self, shape: &[usize]) -> Tensor {
        self.draw(shape, |rng| rng.sample(StandardNormal))
    }

    pub(crate) fn draw(
        &mut self,
        shape: &[usize],
        element: impl Fn(&mut ChaCha8Rng) -> f32,
    ) -> Tensor {
        let n = shape.iter().product();
        let data = (0..n).map(|_| element(&mut self.rng).into()).collect();
        Tensor::new(shape, data)
    }

    /// Draws classes below `n_classes`; every other one is class 0, so that there are repetitions.
    pub(crate) fn classes(&mut self, n: usize, n_classes: u32) -> Vec<u32> {
        let mut any = || self.rng.random_range(0..n_classes);
        (0..n).map(|i| if i % 2 == 0 { any() } else { 0 }).collect()
    }

    pub(crate) fn require(&self, holds: bool, at: &str, what: &str) -> Outcome {
        let broken = || Failure::Broken { at: at.to_string(), what: what.to_string() };
        holds.then_some(()).ok_or_else(broken)
    }

    /// Runs one trial, see [`trial!`].
    pub(crate) fn compare<const N: usize, const M: usize, const R: usize>(
        &mut self,
        label: &str,
        operands: [&Tensor; N],
        accumulators: [&Tensor; M],
        act: impl Fn(&D, [&D::Tensor; N], [&mut D::Tensor; M]) -> Result<[D::Tensor; R]>,
        oracle: impl Fn(&Reference, [&Tensor; N], [&mut Tensor; M]) -> Result<[Tensor; R]>,
    ) -> Outcome {
        let mut operands = operands.map(Tensor::clone);
        for x in operands.iter_mut().flat_map(|operand| &mut operand.data) {
            *x = f64::from((self.round)(*x as f32));
        }
        let operands = operands.each_ref();
        let mut sums = accumulators.map(Tensor::clone);
        let results = oracle(&Reference, operands, sums.each_mut())?;
        let expected: Vec<Tensor> = results.into_iter().chain(sums).collect();

        for placement in [Operands::Whole, Operands::Rows] {
            let at = describe(label, placement, &operands, &accumulators);
            let first = self.call(&at, placement, operands, accumulators, &act)?;
            let second = self.call(&at, placement, operands, accumulators, &act)?;
            for (i, expected) in expected.iter().enumerate() {
                let at = format!("result {i} of {at}");
                let (got, again) = (&first[i], &second[i]);
                let same = got.bits() == again.bits();
                self.require(same, &at, "a second call gives other bits")?;
                let shapes = format!("shape {:?} instead of {:?}", got.shape, expected.shape);
                self.require(got.shape == expected.shape, &at, &shapes)?;
                let error = relative_error(&got.data, &expected.data);
                if error > self.worst.error {
                    self.worst = Worst { error, at };
                }
            }
        }
        Ok(())
    }

    /// Returns the device's results, followed by its accumulators.
    fn call<const N: usize, const M: usize, const R: usize>(
        &self,
        at: &str,
        placement: Operands,
        operands: [&Tensor; N],
        accumulators: [&Tensor; M],
        act: impl Fn(&D, [&D::Tensor; N], [&mut D::Tensor; M]) -> Result<[D::Tensor; R]>,
    ) -> std::result::Result<Vec<Readback>, Failure> {
        let mut wholes = Vec::with_capacity(N);
        let mut placed = Vec::with_capacity(N);
        for operand in operands {
            let (start, whole) = placement.surround(operand);
            let uploaded = self.upload(&whole)?;
            placed.push(match placement {
                Operands::Whole => uploaded.clone(),
                Operands::Rows => self.device.rows(&uploaded, start, operand.n_rows())?,
            });
            wholes.push((whole, uploaded));
        }
        let mut sums = Vec::with_capacity(M);
        for accumulator in accumulators {
            sums.push(self.upload(accumulator)?);
        }

        let mut sums_mut = sums.iter_mut();
        let results = act(
            self.device,
            std::array::from_fn(|i| &placed[i]),
            std::array::from_fn(|_| sums_mut.next().expect("M accumulators")),
        )?;

        for (i, (whole, uploaded)) in wholes.iter().enumerate() {
            let kept = is_same(&self.device.download(uploaded)?, &f32s(whole));
            self.require(kept, at, &format!("operand {i} was written to"))?;
        }
        let results = results.iter().chain(&sums);
        results.map(|tensor| self.read(tensor)).collect()
    }

    fn read(&self, tensor: &D::Tensor) -> std::result::Result<Readback, Failure> {
        let shape = self.device.shape(tensor);
        let elements = self.device.download_all(&[tensor])?.into_iter().next().unwrap_or_default();
        Ok(Readback { data: elements.to_f64(shape.iter().product()), shape })
    }

    fn upload(&self, tensor: &Tensor) -> Result<D::Tensor> {
        self.device.upload(&tensor.shape, &f32s(tensor))
    }
}

/// A tensor of the device, copied to the host.
struct Readback {
    shape: Vec<usize>,
    data: Vec<f64>,
}

impl Readback {
    fn bits(&self) -> Vec<u64> {
        self.data.iter().map(|x| x.to_bits()).collect()
    }
}

/// Placement of a trial's operands in memory.
#[derive(Clone, Copy, PartialEq)]
enum Operands {
    /// In memory of their own.
    Whole,
    /// Within a larger tensor, between NaNs: reading outside of the rows makes the result NaN.
    Rows,
}

impl Operands {
    /// Returns the tensor to upload, and the row of it at which `operand` starts.
    fn surround(self, operand: &Tensor) -> (usize, Tensor) {
        let (before, after) = match self {
            Operands::Whole => (0, 0),
            Operands::Rows => (1, 2),
        };
        let mut shape = operand.shape.clone();
        shape[0] += before + after;
        let nan = |rows| vec![f64::NAN; rows * operand.width()];
        let data = [nan(before), operand.data.clone(), nan(after)].concat();
        (before, Tensor::new(&shape, data))
    }
}

fn describe(label: &str, placement: Operands, operands: &[&Tensor], into: &[&Tensor]) -> String {
    let tensors = operands.iter().chain(into);
    let shapes: Vec<String> = tensors.map(|x| format!("{:?}", x.shape)).collect();
    let placed = match placement {
        Operands::Whole => "",
        Operands::Rows => ", operands are rows of larger tensors",
    };
    let space = if label.is_empty() { "" } else { " " };
    format!("{label}{space}{}{placed}", shapes.join(" "))
}

/// Computes [`Worst::error`].
fn relative_error(got: &[f64], expected: &[f64]) -> f64 {
    if got.iter().any(|x| !x.is_finite()) {
        return f64::INFINITY;
    }
    let magnitudes = expected.iter().map(|x| x.abs());
    let pairs = got.iter().zip(expected);
    let differences = pairs.map(|(got, x)| (got - x).abs());
    differences.fold(0.0, f64::max) / magnitudes.fold(f64::MIN_POSITIVE, f64::max)
}

/// Rounds the elements to the nearest values of f32.
pub(crate) fn rounded(mut tensor: Tensor) -> Tensor {
    for x in &mut tensor.data {
        *x = f64::from(*x as f32);
    }
    tensor
}

pub(crate) fn f32s(tensor: &Tensor) -> Vec<f32> {
    tensor.data.iter().map(|&x| x as f32).collect()
}

/// Returns true if two copies have the same bits.
pub(crate) fn is_same(a: &[f32], b: &[f32]) -> bool {
    bits(a) == bits(b)
}

fn bits(data: &[f32]) -> Vec<u32> {
    data.iter().map(|x| x.to_bits()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_relative_to_the_largest_magnitude() {
        assert_eq!(relative_error(&[1.0, -4.0], &[1.5, -4.0]), 0.125);
        assert_eq!(relative_error(&[0.0], &[0.0]), 0.0);
        assert!(relative_error(&[1e-9], &[0.0]) > 1.0);
        for wrong in [f64::NAN, f64::INFINITY] {
            assert_eq!(relative_error(&[wrong, 0.0], &[1.0, 1.0]), f64::INFINITY);
            assert_eq!(relative_error(&[0.0, wrong], &[1.0, 1.0]), f64::INFINITY);
        }
    }
}
