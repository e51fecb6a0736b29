//! Preconditions the gradient of a linear layer.

use super::layer::{Layer, like, values};
use super::{INVERSES, Side, blocks};
use crate::device::{Device, Result, products_of};
use crate::engine::Training;
use crate::stage::Param;

/// Root mean square of AdamW's steps; matched so that learning rates agree (Liu et al., 2025).
const ADAMW_RMS: f64 = 0.2;

impl<T: Clone> Layer<T> {
    /// Averages the factors if this update takes some. Then replaces the layer's gradient by the
    /// preconditioned one, scaled so that steps with momentum are as long as AdamW's. Returns the
    /// indices of the layer's parameters.
    pub(crate) fn precondition<D: Device<Tensor = T>>(
        &mut self,
        device: &D,
        params: &[Param],
        (grads, state): (&mut [T], &mut [Option<Vec<T>>]),
        (training, update): (&Training, u64),
    ) -> Result<Vec<usize>> {
        let param = &params[self.matrix];
        let Some(state) = &mut state[self.matrix] else { return Ok(Vec::new()) };
        if training.takes_factors(update) {
            self.refresh(device, param, state, (training, update))?;
        }
        let bias = self.bias.map(|bias| values(device, &grads[bias])).transpose()?;
        let gradient = Gradient::of(param, &values(device, &grads[self.matrix])?, bias.as_deref());
        let [input, output] = Side::BOTH.map(|side| &state[INVERSES + side.index()]);
        let mut gradient = gradient.preconditioned(device, param, input, output)?;
        gradient.set_length(ADAMW_RMS * (1.0 - training.momentum));
        let (matrix, bias) = gradient.parts(param);
        let made = |index: usize, values: &[f64]| {
            like(device, &grads[index], &params[index].shape, values)
        };
        let matrix = made(self.matrix, &matrix)?;
        let bias = self.bias.map(|index| made(index, &bias)).transpose()?;
        grads[self.matrix] = matrix;
        if let (Some(index), Some(bias)) = (self.bias, bias) {
            grads[index] = bias;
        }
        Ok([self.matrix].into_iter().chain(self.bias).collect())
    }
}

/// The gradient of a layer, `[outputs, inputs + bias]`, row-major.
struct Gradient {
    values: Vec<f64>,
    width: usize,
}

impl Gradient {
    fn of(param: &Param, matrix: &[f64], bias: Option<&[f64]>) -> Gradient {
        let (inputs, outputs) = param.features().unwrap_or_default();
        let place = place(param);
        let mut values = Vec::with_capacity(outputs * (inputs + 1));
        for output in 0..outputs {
            values.extend((0..inputs).map(|input| matrix[place(output, input)]));
            values.extend(bias.map(|bias| bias[output]));
        }
        Gradient { values, width: inputs + usize::from(bias.is_some()) }
    }

    /// `G⁻¹ M A⁻¹`, with one `G` per linear map.
    fn preconditioned<D: Device>(
        self,
        device: &D,
        param: &Param,
        input: &D::Tensor,
        output: &D::Tensor,
    ) -> Result<Gradient> {
        let Gradient { values: gradient, width } = self;
        let outputs = gradient.len() / width.max(1);
        let gradient = like(device, input, &[outputs, width], &gradient)?;
        // Inverses are symmetric.
        let right = values(device, &products_of(device)?.product(&gradient, input)?)?;
        let (mut all, mut start, mut first) = (Vec::with_capacity(right.len()), 0, 0);
        for n in blocks(param) {
            let block = device.reshape(&device.rows(output, start, n * n)?, &[n, n])?;
            let column = |input| (first..first + n).map(move |output| output * width + input);
            let turned: Vec<f64> = (0..width).flat_map(column).map(|at| right[at]).collect();
            let turned = like(device, input, &[width, n], &turned)?;
            all.extend(values(device, &products_of(device)?.product(&block, &turned)?)?);
            (start, first) = (start + n * n, first + n);
        }
        Ok(Gradient { values: all, width })
    }

    /// Scales the gradient to this root mean square.
    fn set_length(&mut self, rms: f64) {
        let square: f64 = self.values.iter().map(|x| x * x).sum();
        if square > 0.0 {
            let scale = rms * (self.values.len() as f64 / square).sqrt();
            self.values.iter_mut().for_each(|x| *x *= scale);
        }
    }

    /// Splits into the gradients of the matrix and of the bias.
    fn parts(&self, param: &Param) -> (Vec<f64>, Vec<f64>) {
        let (inputs, outputs) = param.features().unwrap_or_default();
        let place = place(param);
        let (mut matrix, mut bias) = (vec![0.0; inputs * outputs], Vec::new());
        for (output, row) in self.values.chunks_exact(self.width.max(1)).enumerate() {
            let (weights, rest) = row.split_at(inputs);
            weights.iter().enumerate().for_each(|(input, x)| matrix[place(output, input)] = *x);
            bias.extend(rest);
        }
        (matrix, bias)
    }
}

/// Returns the index, in the layer's matrix, of the weight from an input to an output.
fn place(param: &Param) -> impl Fn(usize, usize) -> usize + use<> {
    let (inputs, outputs) = param.features().unwrap_or_default();
    let inputs_first = param.shown.as_ref().is_some_and(|layer| layer.inputs_first);
    move |output, input| {
        if inputs_first { input * outputs + output } else { output * inputs + input }
    }
}
