//! The tensors of an update, independent of the type of their device.

use crate::device::{
    AdamW, Device, DeviceError, Result, Sgd, Updated, WithMomentum, update_on_host,
};
use crate::engine::Training;
use crate::engine::optim::host_products::OnHost;
use crate::engine::optim::param_group::{GroupTensors, HostTensor, ParamGroup};
use crate::engine::optim::update_rule::Repeat;
use crate::stage::Param;

pub(crate) struct Step<'t> {
    pub(crate) training: &'t Training,
    pub(crate) step: u64,
    /// Number of the update, from 0.
    pub(crate) update: u64,
    pub(crate) grad_scale: f64,
}

impl Step<'_> {
    /// Updates whole tensors, in groups with equal learning rate and weight decay.
    pub(crate) fn update<D: Device>(
        &self,
        device: &D,
        tensors: Vec<OnDevice<'_, D::Tensor>>,
    ) -> Result<()> {
        self.change(device, tensors, self.update + 1, |group| self.training.optimizer.update(group))
    }

    /// Repeats the last update `ahead` times, on copies of the weights and their state.
    pub(crate) fn repeat<D: Device>(
        &self,
        device: &D,
        tensors: Vec<OnDevice<'_, D::Tensor>>,
        (repeat, ahead): (Repeat, u32),
    ) -> Result<()> {
        self.change(device, tensors, self.update, |group| repeat(group, ahead))
    }

    /// Changes weights in groups, by the update of this number from 1.
    fn change<D: Device>(
        &self,
        device: &D,
        tensors: Vec<OnDevice<'_, D::Tensor>>,
        update: u64,
        change: impl Fn(ParamGroup<'_>) -> Result<()>,
    ) -> Result<()> {
        let &Step { training, step, grad_scale, .. } = self;
        let lr = training.lr_at(step);
        let mut groups: Vec<((f64, f64, bool), Vec<_>)> = Vec::new();
        for tensor in tensors {
            let (multiple, decay) = training.param_groups.of(tensor.param, training.weight_decay);
            let of = (multiple, decay, tensor.is_preconditioned);
            match groups.iter_mut().find(|(known, _)| *known == of) {
                Some((_, group)) => group.push(tensor),
                None => groups.push((of, vec![tensor])),
            }
        }
        for ((multiple, weight_decay, is_preconditioned), tensors) in groups {
            let (lr, tensors) = (lr * multiple, Box::new(DeviceGroup { device, tensors }));
            // A preconditioned gradient already has the intended length.
            let grad_scale = if is_preconditioned { 1.0 } else { grad_scale };
            let group = ParamGroup {
                training,
                lr,
                weight_decay,
                update,
                grad_scale,
                is_preconditioned,
                tensors,
            };
            change(group)?;
        }
        Ok(())
    }
}

/// Updates parameters as the first step of a training does, without clipping; for benchmarks and
/// tests of optimizers. `weights`, `gradients` and `states` have one entry per parameter in
/// `params`; a state has the tensors named by
/// [`UpdateRule::state`](crate::engine::UpdateRule::state).
///
/// # Errors
/// If the device fails.
pub fn first_update<D: Device>(
    device: &D,
    training: &Training,
    params: &[Param],
    weights: &mut [D::Tensor],
    gradients: &[D::Tensor],
    states: &mut [Vec<D::Tensor>],
) -> Result<()> {
    let each = params.iter().zip(weights).zip(gradients).zip(states);
    let tensors = each.map(|(((param, weights), gradient), state)| OnDevice {
        param,
        weights,
        gradient,
        state,
        is_preconditioned: false,
    });
    Step { training, step: 0, update: 0, grad_scale: 1.0 }.update(device, tensors.collect())
}

/// A parameter on its device, with its state.
pub(crate) struct OnDevice<'t, T> {
    pub(crate) param: &'t Param,
    pub(crate) weights: &'t mut T,
    pub(crate) gradient: &'t T,
    pub(crate) state: &'t mut [T],
    pub(crate) is_preconditioned: bool,
}

struct DeviceGroup<'g, D: Device> {
    device: &'g D,
    tensors: Vec<OnDevice<'g, D::Tensor>>,
}

impl<D: Device> DeviceGroup<'_, D> {
    /// The parameters with the two moments of the device's AdamW and LAMB.
    fn updated(&mut self) -> Result<Vec<Updated<'_, D::Tensor>>> {
        self.with_state(|w, g, [m, v]| Updated { w, g, m, v })
    }

    /// The parameters with the momentum of the device's gradient descent.
    fn with_momentum(&mut self) -> Result<Vec<WithMomentum<'_, D::Tensor>>> {
        self.with_state(|w, g, [m]| WithMomentum { w, g, m })
    }

    /// Applies `view` to each parameter's weights, gradient and first `N` state tensors.
    fn with_state<'s, const N: usize, V>(
        &'s mut self,
        view: impl Fn(&'s mut D::Tensor, &'s D::Tensor, &'s mut [D::Tensor; N]) -> V,
    ) -> Result<Vec<V>> {
        let mut all = Vec::with_capacity(self.tensors.len());
        for OnDevice { param, weights, gradient, state, .. } in &mut self.tensors {
            let n_kept = state.len();
            let Some(state) = state.first_chunk_mut::<N>() else {
                return Err(DeviceError::Failed {
                    device: self.device.name(),
                    op: "update",
                    reason: format!(
                        "the optimizer keeps {n_kept} state tensors of {}, and this update needs {N}: name as many in \
                         UpdateRule::state",
                        param.name
                    ),
                });
            };
            state.iter().try_for_each(|kept| check_state(param, &self.device.shape(kept)))?;
            all.push(view(weights, gradient, state));
        }
        Ok(all)
    }
}

/// Refuses a state tensor of another shape than its parameter's.
fn check_state(param: &Param, got: &[usize]) -> Result<()> {
    let Param { name, shape, .. } = param;
    if got == shape {
        Ok(())
    } else {
        Err(DeviceError::other(format!(
            "the optimizer keeps a state tensor of shape {got:?} of `{name}`, which has {shape:?}: an update on the host, or by a \
             function of the device, needs UpdateRule::state_shape to be the parameter's"
        )))
    }
}

impl<'g, D: Device> GroupTensors<'g> for DeviceGroup<'g, D> {
    fn split(
        self: Box<Self>,
        is_first: &dyn Fn(&Param) -> bool,
    ) -> (Box<dyn GroupTensors<'g> + 'g>, Box<dyn GroupTensors<'g> + 'g>) {
        let DeviceGroup { device, tensors } = *self;
        let (first, others) = tensors.into_iter().partition(|tensor| is_first(tensor.param));
        (
            Box::new(DeviceGroup { device, tensors: first }),
            Box::new(DeviceGroup { device, tensors: others }),
        )
    }

    fn adamw(&mut self, by: &AdamW) -> Result<()> {
        let device = self.device;
        device.adamw(&mut self.updated()?, by)
    }

    fn lamb(&mut self, by: &AdamW) -> Result<()> {
        let device = self.device;
        device.lamb(&mut self.updated()?, by)
    }

    fn sgd(&mut self, by: &Sgd) -> Result<()> {
        let device = self.device;
        device.sgd(&mut self.with_momentum()?, by)
    }

    fn on_host(
        &mut self,
        grad_scale: f64,
        update: &mut dyn FnMut(HostTensor<'_>) -> Result<()>,
    ) -> Result<()> {
        let device = self.device;
        for OnDevice { param, weights, gradient, state, .. } in &mut self.tensors {
            state.iter().try_for_each(|kept| check_state(param, &device.shape(kept)))?;
            let dtype = device.dtype(weights);
            let products = OnHost { device, dtype };
            let mut state: Vec<_> = state.iter_mut().collect();
            update_on_host(device, weights, gradient, &mut state, |weights, gradient, state| {
                gradient.data.iter_mut().for_each(|g| *g *= grad_scale);
                update(HostTensor {
                    param,
                    weights: &mut weights.data,
                    gradient: &gradient.data,
                    state: state.iter_mut().map(|tensor| &mut tensor.data[..]).collect(),
                    products: &products,
                })
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::reference::{Reference, Tensor};
    use crate::engine::{Optimizer, UpdateRule};
    use crate::stage::Init;

    /// A caller's rule that uses the device's gradient descent.
    struct Descent(&'static [&'static str]);

    impl UpdateRule for Descent {
        fn name(&self) -> &str {
            "descent"
        }

        fn state(&self, _: &Param) -> &[&'static str] {
            self.0
        }

        fn update(&self, group: ParamGroup<'_>) -> Result<()> {
            group.sgd()
        }
    }

    #[test]
    fn gradient_descent_needs_one_state_tensor() {
        let params = [Param::new("w", [2], Init::Zeros)];
        let updated = |state: &'static [&'static str]| {
            let optimizer = Optimizer::new(Descent(state));
            let training = Training { optimizer, lr: 1.0, min_lr: 1.0, ..Training::default() };
            let gradients = [Tensor::new(&[2], vec![1.0, -2.0])];
            let mut weights = [Tensor::zeros(&[2])];
            let mut states = [state.iter().map(|_| Tensor::zeros(&[2])).collect()];
            first_update(&Reference, &training, &params, &mut weights, &gradients, &mut states)?;
            let [kept] = states;
            Ok::<_, DeviceError>((weights, kept))
        };
        let (weights, kept) = updated(&["momentum"]).unwrap();
        assert_eq!((&*weights[0].data, &*kept[0].data), (&[-1.0, 2.0][..], &[1.0, -2.0][..]));
        let refusal = updated(&[]).unwrap_err().to_string();
        let wanted = "keeps 0 state tensors of w, and this update needs 1: name as many in UpdateRule::state";
        assert!(refusal.contains(wanted), "{refusal}");
    }
}
