//! The factors of one linear layer, from its operands to their inverses.

use super::{FACTORS, INVERSES, Kfac, Side, blocks, cholesky};
use crate::device::{Device, DeviceError, Elements, Result, products_of};
use crate::engine::Training;
use crate::engine::optim::update_rule::UpdateRule;
use crate::stage::Param;

/// A linear layer of a stage, with the pending sums and inverses of its factors.
pub(crate) struct Layer<T> {
    /// Indices of the matrix and the bias among the stage's parameters.
    pub(super) matrix: usize,
    pub(super) bias: Option<usize>,
    /// By side: the sum of products of this update, over this replica or over all.
    sums: [Option<T>; 2],
    /// By side: the inverse that takes effect with the next factors, once it is computed.
    next: [Option<T>; 2],
}

impl<T: Clone> Layer<T> {
    pub(crate) fn all(params: &[Param]) -> Vec<Layer<T>> {
        let place = |name: &String| params.iter().position(|param| param.name == *name);
        let of = |(matrix, param): (usize, &Param)| {
            let layer = param.shown.as_ref()?;
            let bias = layer.bias.as_ref().and_then(place);
            Some(Layer { matrix, bias, sums: [None, None], next: [None, None] })
        };
        params.iter().enumerate().filter_map(of).collect()
    }

    /// Index of the layer's matrix among the stage's parameters.
    pub(crate) fn matrix(&self) -> usize {
        self.matrix
    }

    /// Discards the sums of an update.
    pub(crate) fn begin(&mut self) {
        self.sums = [None, None];
    }

    /// Discards inverses that are not in use yet; they can be computed again.
    pub(crate) fn forget(&mut self) {
        self.next = [None, None];
    }

    /// Adds the products of a micro-batch's operand to the sums.
    pub(crate) fn add<D: Device<Tensor = T>>(
        &mut self,
        device: &D,
        side: Side,
        operand: &T,
    ) -> Result<()> {
        let products = products(device, operand, side == Side::Input)?;
        match &mut self.sums[side.index()] {
            Some(sum) => device.accumulate(sum, &products),
            none => {
                *none = Some(products);
                Ok(())
            }
        }
    }

    /// Takes this replica's sums; zeros if it had no micro-batch.
    pub(crate) fn take_sums<D: Device<Tensor = T>>(
        &mut self,
        device: &D,
        params: &[Param],
    ) -> Result<[T; 2]> {
        let param = &params[self.matrix];
        let mut take = |side: Side| match self.sums[side.index()].take() {
            Some(sum) => Ok(sum),
            None => device.zeros(&Kfac.state_shape(param, FACTORS + side.index())),
        };
        Ok([take(Side::Input)?, take(Side::Output)?])
    }

    pub(crate) fn put_sums(&mut self, sums: [T; 2]) {
        self.sums = sums.map(Some);
    }

    /// Computes the inverse of a factor, which takes effect with the next factors.
    pub(crate) fn invert<D: Device<Tensor = T>>(
        &mut self,
        device: &D,
        (side, param): (Side, &Param),
        state: &[T],
        training: &Training,
    ) -> Result<()> {
        let factor = &state[FACTORS + side.index()];
        self.next[side.index()] = Some(inverse(device, (side, param), factor, training)?);
        Ok(())
    }

    /// Returns true if the next inverse is already computed.
    pub(crate) fn is_inverted(&self, side: Side) -> bool {
        self.next[side.index()].is_some()
    }

    /// For an update that takes factors: puts the last inverses into use, and averages the factors
    /// with the sums over replicas. The first update uses the inverses of its own factors.
    pub(super) fn refresh<D: Device<Tensor = T>>(
        &mut self,
        device: &D,
        param: &Param,
        state: &mut [T],
        (training, update): (&Training, u64),
    ) -> Result<()> {
        let is_first = update == 0;
        // The inverses of the first factors are in use from the first update on.
        if update > training.kfac_every.max(1) {
            self.put_inverses(device, param, state, training)?;
        }
        let [Some(inputs), Some(outputs)] = std::mem::take(&mut self.sums) else {
            return Err(DeviceError::Other(format!("{} has no sums of factors", param.name)));
        };
        let [inputs, outputs] = [values(device, &inputs)?, values(device, &outputs)?];
        // The appended ones count the rows. Gradients are those of a mean over the rows.
        let n_rows = inputs.last().copied().unwrap_or(1.0).max(1.0);
        let means = [(inputs, 1.0 / n_rows), (outputs, n_rows)];
        let decay = if is_first { 0.0 } else { training.kfac_decay };
        for (side, (sums, scale)) in Side::BOTH.into_iter().zip(means) {
            let factor = &mut state[FACTORS + side.index()];
            let mut mean = values(device, factor)?;
            for (mean, sum) in mean.iter_mut().zip(sums) {
                *mean = decay * *mean + (1.0 - decay) * scale * sum;
            }
            *factor = like(device, factor, &device.shape(factor), &mean)?;
        }
        if is_first {
            self.put_inverses(device, param, state, training)?;
            self.forget();
        }
        Ok(())
    }

    /// Puts the inverses of the factors into use.
    fn put_inverses<D: Device<Tensor = T>>(
        &mut self,
        device: &D,
        param: &Param,
        state: &mut [T],
        training: &Training,
    ) -> Result<()> {
        for side in Side::BOTH {
            if !self.is_inverted(side) {
                self.invert(device, (side, param), state, training)?;
            }
            if let Some(inverse) = self.next[side.index()].take() {
                state[INVERSES + side.index()] = inverse;
            }
        }
        Ok(())
    }
}

/// `xᵀ x` over the rows of an operand; `with_ones` appends a one to each row.
fn products<D: Device>(device: &D, x: &D::Tensor, with_ones: bool) -> Result<D::Tensor> {
    let (n_rows, width) = match device.shape(x)[..] {
        [n_rows, width] => (n_rows, width),
        ref other => {
            let reason = format!("an operand of a linear layer has extents {other:?}");
            return Err(DeviceError::Other(reason));
        }
    };
    let rows = values(device, x)?;
    let height = width + usize::from(with_ones);
    let mut columns = vec![1.0; height * n_rows];
    for (row, values) in rows.chunks_exact(width.max(1)).enumerate() {
        for (column, value) in values.iter().enumerate() {
            columns[column * n_rows + row] = *value;
        }
    }
    let columns = like(device, x, &[height, n_rows], &columns)?;
    products_of(device)?.product(&columns, &columns)
}

/// Returns the inverse of a factor, damped by a fraction of its mean diagonal. The inverse of an
/// input factor excludes the ones if there is no bias; for an output factor each block is inverted.
fn inverse<D: Device>(
    device: &D,
    (side, param): (Side, &Param),
    factor: &D::Tensor,
    training: &Training,
) -> Result<D::Tensor> {
    let shape = Kfac.state_shape(param, INVERSES + side.index());
    let width = device.shape(factor).first().copied().unwrap_or(0);
    let extents = match side {
        Side::Input => vec![shape[0]],
        Side::Output => blocks(param),
    };
    let (factor_values, mut start) = (values(device, factor)?, 0);
    let mut all = Vec::with_capacity(shape.iter().product());
    for n in extents {
        let row = |i: usize| &factor_values[(start + i) * width + start..][..n];
        let mut block: Vec<f64> = (0..n).flat_map(row).copied().collect();
        let trace: f64 = (0..n).map(|i| block[i * n + i]).sum();
        // A factor of zeros becomes a multiple of the identity, which preconditions nothing.
        let mean = if trace > 0.0 { trace / n as f64 } else { 1.0 };
        (0..n).for_each(|i| block[i * n + i] += training.kfac_damping * mean);
        all.extend(cholesky::inverse(block, n).ok_or_else(|| {
            let name = &param.name;
            let reason = format!("a factor of {name} cannot be inverted: raise kfac-damping");
            DeviceError::Other(reason)
        })?);
        start += n;
    }
    like(device, factor, &shape, &all)
}

pub(super) fn values<D: Device>(device: &D, tensor: &D::Tensor) -> Result<Vec<f64>> {
    let mut words = Vec::new();
    device.download_words(tensor, &mut words)?;
    let n = device.shape(tensor).iter().product();
    Ok(Elements { dtype: device.dtype(tensor), words }.to_f64(n))
}

/// Uploads values as a tensor of the same type as `other`.
pub(super) fn like<D: Device>(
    device: &D,
    other: &D::Tensor,
    shape: &[usize],
    values: &[f64],
) -> Result<D::Tensor> {
    let Elements { dtype, words } = Elements::of_f64(device.dtype(other), values);
    device.upload_words(shape, dtype, words)
}
