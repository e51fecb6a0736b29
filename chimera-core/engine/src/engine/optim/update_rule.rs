//! The interface of optimizers: a rule that updates weights, and its state.

use crate::device::Result;
use crate::engine::optim::param_group::ParamGroup;
use crate::stage::Param;

/// Changes weights as this number of further updates like the last one would. The group has copies of the
/// weights and of their state, gradients of zero, and the number of the last update.
pub type Repeat = fn(ParamGroup<'_>, u32) -> Result<()>;

/// A rule that updates weights by their gradients.
///
/// A rule itself keeps nothing. Its state for a parameter consists of tensors, of the parameter's
/// shape unless the rule says otherwise. The engine keeps them with the weights: initially zero, in
/// every checkpoint, and only on the tensor's owner if the optimizer is sharded. A rule is always
/// given whole tensors. It must be deterministic to the bit, since replicas update independently.
pub trait UpdateRule: Send + Sync {
    /// Name of the rule. Checkpoints record it to identify their state.
    fn name(&self) -> &str;

    /// Names of the state tensors of a parameter, also used in checkpoints.
    fn state(&self, param: &Param) -> &[&'static str];

    /// Names of the state tensors that are kept for a parameter; none for a frozen one.
    fn kept(&self, param: &Param) -> &[&'static str] {
        if param.frozen { &[] } else { self.state(param) }
    }

    /// Shape of the state tensor at `index`. Updates on the host need the parameter's shape.
    fn state_shape(&self, param: &Param, _index: usize) -> Vec<usize> {
        param.shape.clone()
    }

    /// Shape of the tensor in a slot: 0 is the parameter itself, then come its state tensors.
    fn slot_shape(&self, param: &Param, slot: usize) -> Vec<usize> {
        match slot.checked_sub(1) {
            Some(index) => self.state_shape(param, index),
            None => param.shape.clone(),
        }
    }

    /// Number of elements of all state tensors of a parameter.
    fn n_state_elements(&self, param: &Param) -> usize {
        let n_elements = |index| self.state_shape(param, index).iter().product::<usize>();
        (0..self.kept(param).len()).map(n_elements).sum()
    }

    /// Returns true if K-FAC is to precondition the gradients of [shown](Param::shown) linear
    /// layers before the update. The state of their matrices is then that of the rule `kfac`.
    fn preconditions(&self) -> bool {
        false
    }

    /// Returns true if the rule multiplies matrices, by
    /// [`HostTensor::product`](crate::engine::HostTensor::product). On a device without products
    /// such a training is refused before its first step.
    fn needs_products(&self) -> bool {
        false
    }

    /// Repeats the last update, for schedules whose forwards read predicted weights; `None` if the
    /// rule predicts none.
    fn repeat(&self) -> Option<Repeat> {
        None
    }

    /// Updates the weights and the state of some parameters.
    ///
    /// # Errors
    /// If the device fails; this ends the run.
    fn update(&self, group: ParamGroup<'_>) -> Result<()>;
}
