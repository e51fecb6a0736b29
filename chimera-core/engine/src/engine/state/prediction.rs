//! Weights that are predicted from the state of the optimizer (PipeOptim).

use std::sync::Arc;

use crate::device::{Device, Result};
use crate::engine::optim::update_rule::Repeat;
use crate::engine::optim::updating::{OnDevice, Step};
use crate::engine::state::held_stage::{Held, Weights, copy};
use crate::stage::Stage;

impl<S: Stage> Held<S> {
    /// The weights after `ahead` more updates, if each changes them as the last one did: `W - lr *
    /// ahead * dW`, where `dW` follows from the optimizer's state after `step.update` updates.
    pub(crate) fn predicted<D: Device<Tensor = S::Tensor>>(
        &self,
        device: &D,
        (repeat, ahead): (Repeat, u32),
        step: &Step<'_>,
    ) -> Result<Weights<S>> {
        if ahead == 0 || step.update == 0 {
            return Ok(Arc::clone(&self.weights));
        }
        let mut weights = Vec::with_capacity(self.weights.len());
        // One tensor at a time: the copy of its state is gone before the next one.
        for ((current, state), param) in
            self.weights.iter().zip(&self.state).zip(self.stage.params())
        {
            let mut predicted = copy(device, current)?;
            let state = state.iter().flatten().map(|kept| copy(device, kept));
            let mut state = state.collect::<Result<Vec<_>>>()?;
            if !param.frozen {
                let gradient = &device.zeros(&device.shape(current))?;
                let (weights, state, is_preconditioned) = (&mut predicted, &mut state[..], false);
                let tensor = OnDevice { param, weights, gradient, state, is_preconditioned };
                step.repeat(device, vec![tensor], (repeat, ahead))?;
            }
            weights.push(predicted);
        }
        Ok(Arc::new(weights))
    }
}
