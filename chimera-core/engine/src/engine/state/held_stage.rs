//! One stage with its weights, gradients and optimizer state.

use std::sync::Arc;

use crate::device::{Device, Dtype, Result};
use crate::engine::optim::kfac::{Layer, Side};
use crate::engine::optim::training::Training;
use crate::engine::optim::update_rule::UpdateRule;
use crate::engine::optim::updating::{OnDevice, Step};
use crate::stage::{Param, Stage, initial};

/// A stage with its weights, gradients and optimizer state, in the order of its parameters.
pub(crate) struct Held<S: Stage> {
    pub(crate) stage: S,
    pub(crate) weights: Weights<S>,
    /// The previous version of the weights, with double buffering.
    pub(crate) previous: Option<Weights<S>>,
    /// Number of updates since the start of the program.
    pub(crate) n_updates: u32,
    pub(crate) grads: Vec<S::Tensor>,
    /// State of the update rule for each parameter: empty if it is frozen, and `None` where another
    /// rank updates the tensor.
    pub(crate) state: Vec<Option<Vec<S::Tensor>>>,
    /// The linear layers with operands that the stage shows.
    pub(crate) layers: Vec<Layer<S::Tensor>>,
}

/// One version of a stage's weights, which lives as long as it has readers.
pub(crate) type Weights<S> = Arc<Vec<<S as Stage>::Tensor>>;

impl<S: Stage> Held<S> {
    pub(crate) fn new<D: Device<Tensor = S::Tensor>>(
        stage: S,
        device: &D,
        seed: u64,
    ) -> Result<Held<S>> {
        let params = stage.params();
        let each = |make: &dyn Fn(&Param) -> Result<S::Tensor>| {
            params.iter().map(make).collect::<Result<Vec<_>>>()
        };
        let weights = each(&|p| p.upload(device, initial(p, seed)))?;
        let grads = each(&|p| device.zeros(&p.gradient_shape()))?;
        let state = params.iter().map(|p| p.frozen.then(Vec::new)).collect();
        let (weights, layers) = (Arc::new(weights), Layer::all(params));
        Ok(Held { weights, previous: None, n_updates: 0, grads, state, layers, stage })
    }

    /// Allocates zeros as the state of a tensor that this rank updates.
    pub(crate) fn begin_state<D: Device<Tensor = S::Tensor>>(
        &mut self,
        device: &D,
        index: usize,
        rule: &dyn UpdateRule,
    ) -> Result<()> {
        let param = &self.stage.params()[index];
        let n_kept = rule.kept(param).len();
        let zeros = (0..n_kept).map(|kept| device.zeros(&rule.state_shape(param, kept)));
        self.state[index] = Some(zeros.collect::<Result<_>>()?);
        Ok(())
    }

    /// Allocates zeros for the gradients of the next update. The old ones are never cleared in
    /// place, since the last sums may be shared with other ranks.
    pub(crate) fn clear_gradients<D: Device<Tensor = S::Tensor>>(
        &mut self,
        device: &D,
    ) -> Result<()> {
        for (grad, param) in self.grads.iter_mut().zip(self.stage.params()) {
            *grad = device.zeros(&param.gradient_shape())?;
        }
        Ok(())
    }

    /// Updates the given tensors, as far as this rank updates them, which makes the next version of
    /// the weights. Works in place unless the present version still has readers. With
    /// `keeps_previous` the present version is kept for later forwards.
    pub(crate) fn update<D: Device<Tensor = S::Tensor>>(
        &mut self,
        device: &D,
        indices: impl Iterator<Item = usize>,
        keeps_previous: bool,
        step: &Step<'_>,
    ) -> Result<()> {
        self.previous = keeps_previous.then(|| Arc::clone(&self.weights));
        if Arc::get_mut(&mut self.weights).is_none() {
            let copies = self.weights.iter().map(|w| copy(device, w));
            self.weights = Arc::new(copies.collect::<Result<_>>()?);
        }
        let mut is_mine = vec![false; self.grads.len()];
        indices.for_each(|index| is_mine[index] = true);
        let preconditioned = self.precondition(device, &is_mine, step)?;
        let weights = Arc::make_mut(&mut self.weights).iter_mut();
        let all = weights.zip(&mut self.state).zip(self.grads.iter().zip(self.stage.params()));
        let tensors = all.zip(is_mine.into_iter().zip(preconditioned));
        let tensors = tensors.filter(|(_, (is_mine, _))| *is_mine);
        let tensors = tensors.filter_map(|(((weights, state), (gradient, param)), (_, is))| {
            let state = state.as_mut()?;
            Some(OnDevice { param, weights, gradient, state, is_preconditioned: is })
        });
        step.update(device, tensors.collect())
    }

    /// Preconditions the gradients of linear layers, if the optimizer does so. Returns, by tensor,
    /// whether it was preconditioned.
    fn precondition<D: Device<Tensor = S::Tensor>>(
        &mut self,
        device: &D,
        is_mine: &[bool],
        step: &Step<'_>,
    ) -> Result<Vec<bool>> {
        let mut preconditioned = vec![false; is_mine.len()];
        if !step.training.optimizer.preconditions() {
            return Ok(preconditioned);
        }
        let Held { stage, grads, state, layers, .. } = self;
        for layer in layers.iter_mut().filter(|layer| is_mine[layer.matrix()]) {
            let by = (step.training, step.update);
            let done =
                layer.precondition(device, stage.params(), (&mut *grads, &mut *state), by)?;
            done.into_iter().for_each(|index| preconditioned[index] = true);
        }
        Ok(preconditioned)
    }

    /// Computes an inverse that takes effect with the next factors.
    pub(crate) fn invert<D: Device<Tensor = S::Tensor>>(
        &mut self,
        device: &D,
        (layer, side): (usize, Side),
        training: &Training,
    ) -> Result<()> {
        let layer = &mut self.layers[layer];
        let (matrix, is_inverted) = (layer.matrix(), layer.is_inverted(side));
        match &self.state[matrix] {
            Some(state) if !is_inverted => {
                layer.invert(device, (side, &self.stage.params()[matrix]), state, training)
            }
            _ => Ok(()),
        }
    }

    /// Appends this replica's sums of factors to `sums`.
    pub(crate) fn take_factors<D: Device<Tensor = S::Tensor>>(
        &mut self,
        device: &D,
        sums: &mut Vec<S::Tensor>,
    ) -> Result<()> {
        for layer in &mut self.layers {
            sums.extend(layer.take_sums(device, self.stage.params())?);
        }
        Ok(())
    }
}

impl<S: Stage> Held<S> {
    /// The tensors held of each parameter: its weights (slot 0) and its optimizer state.
    pub(crate) fn slots(&self) -> Vec<(usize, usize)> {
        let n_kept = self.state.iter().map(|kept| kept.as_ref().map_or(0, Vec::len));
        let of = |(tensor, n_kept)| (0..=n_kept).map(move |slot| (tensor, slot));
        n_kept.enumerate().flat_map(of).collect()
    }

    /// The tensor in a slot, if this rank holds it.
    pub(crate) fn value(&self, tensor: usize, slot: usize) -> Option<&S::Tensor> {
        match slot.checked_sub(1) {
            None => Some(&self.weights[tensor]),
            Some(kept) => self.state[tensor].as_ref().map(|all| &all[kept]),
        }
    }

    /// Replaces the tensor in a slot.
    pub(crate) fn put(&mut self, tensor: usize, slot: usize, value: S::Tensor) {
        match (slot.checked_sub(1), &mut self.state[tensor]) {
            (Some(kept), Some(all)) => all[kept] = value,
            _ => Arc::make_mut(&mut self.weights)[tensor] = value,
        }
    }
}

/// Copies a tensor into memory of its own. Clones share memory, which updates write to, but for
/// packed matrices, which nothing updates.
pub(crate) fn copy<D: Device>(device: &D, tensor: &D::Tensor) -> Result<D::Tensor> {
    if device.dtype(tensor) == Dtype::Packed {
        return Ok(tensor.clone());
    }
    let mut copy = device.zeros(&device.shape(tensor))?;
    device.accumulate(&mut copy, tensor)?;
    Ok(copy)
}
