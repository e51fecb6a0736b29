//! One stage with its weights, gradients and the state of the optimizer.

use std::sync::Arc;

use crate::device::{Device, Result};
use crate::engine::optim::kfac::{Layer, Side};
use crate::engine::optim::training::Training;
use crate::engine::optim::update_rule::UpdateRule;
use crate::engine::optim::updating::{OnDevice, Step};
use crate::stage::{Param, Stage, initial};

/// A stage with its weights, gradients and the state of the optimizer, in the order of its parameters.
pub(crate) struct Held<S: Stage> {
    pub(crate) stage: S,
    pub(crate) weights: Weights<S>,
    /// The version before, in a double buffer.
    pub(crate) previous: Option<Weights<S>>,
    /// Updates since the start of the program.
    pub(crate) n_updates: u32,
    pub(crate) grads: Vec<S::Tensor>,
    /// What the update rule keeps of each; `None` where another rank updates the tensor.
    pub(crate) state: Vec<Option<Vec<S::Tensor>>>,
    /// The linear layers whose operands the stage shows.
    pub(crate) layers: Vec<Layer<S::Tensor>>,
}

/// One version of a stage's weights, which lives as long as somebody has to read it.
pub(crate) type Weights<S> = Arc<Vec<<S as Stage>::Tensor>>;

impl<S: Stage> Held<S> {
    /// A stage with initial weights.
    pub(crate) fn new<D: Device<Tensor = S::Tensor>>(
        stage: S,
        device: &D,
        seed: u64,
    ) -> Result<Held<S>> {
        let params = stage.params();
        let each = |make: &dyn Fn(&Param) -> Result<S::Tensor>| {
            params.iter().map(make).collect::<Result<Vec<_>>>()
        };
        let weights = each(&|p| device.upload(&p.shape, &initial(p, seed)))?;
        let grads = each(&|p| device.zeros(&p.shape))?;
        let state = params.iter().map(|_| None).collect();
        let (weights, layers) = (Arc::new(weights), Layer::all(params));
        Ok(Held { weights, previous: None, n_updates: 0, grads, state, layers, stage })
    }

    /// State of zeros for a tensor that this rank updates.
    pub(crate) fn begin_state<D: Device<Tensor = S::Tensor>>(
        &mut self,
        device: &D,
        index: usize,
        rule: &dyn UpdateRule,
    ) -> Result<()> {
        let param = &self.stage.params()[index];
        let n_kept = rule.state(param).len();
        let zeros = (0..n_kept).map(|kept| device.zeros(&rule.state_shape(param, kept)));
        self.state[index] = Some(zeros.collect::<Result<_>>()?);
        Ok(())
    }

    /// Zeros for the gradients of the next update. Never cleared in place: the sums of the last may be
    /// shared with other ranks.
    pub(crate) fn clear_gradients<D: Device<Tensor = S::Tensor>>(
        &mut self,
        device: &D,
    ) -> Result<()> {
        for (grad, param) in self.grads.iter_mut().zip(self.stage.params()) {
            *grad = device.zeros(&param.shape)?;
        }
        Ok(())
    }

    /// Updates those of some tensors that are this rank's to update, which makes the next version of the weights:
    /// in place, unless the present one is still to be read. With `keeps_previous` it is, by forwards to come.
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

    /// Preconditions the gradients of linear layers, if the optimizer is one that does; by tensor, whether it did.
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

    /// Computes an inverse that comes into use with the next factors.
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

    /// Puts this replica's sums of factors behind `sums`.
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
    /// All that a rank holds of a stage: of each tensor its weights (0), and what the optimizer keeps of it.
    pub(crate) fn slots(&self) -> Vec<(usize, usize)> {
        let n_kept = self.state.iter().map(|kept| kept.as_ref().map_or(0, Vec::len));
        let of = |(tensor, n_kept)| (0..=n_kept).map(move |slot| (tensor, slot));
        n_kept.enumerate().flat_map(of).collect()
    }

    /// One of them, if this rank holds it.
    pub(crate) fn value(&self, tensor: usize, slot: usize) -> Option<&S::Tensor> {
        match slot.checked_sub(1) {
            None => Some(&self.weights[tensor]),
            Some(kept) => self.state[tensor].as_ref().map(|all| &all[kept]),
        }
    }

    /// Puts another one in its place.
    pub(crate) fn put(&mut self, tensor: usize, slot: usize, value: S::Tensor) {
        match (slot.checked_sub(1), &mut self.state[tensor]) {
            (Some(kept), Some(all)) => all[kept] = value,
            _ => Arc::make_mut(&mut self.weights)[tensor] = value,
        }
    }
}

/// Clones of a device's tensors share memory, which updates write to.
pub(crate) fn copy<D: Device>(device: &D, tensor: &D::Tensor) -> Result<D::Tensor> {
    let mut copy = device.zeros(&device.shape(tensor))?;
    device.accumulate(&mut copy, tensor)?;
    Ok(copy)
}
