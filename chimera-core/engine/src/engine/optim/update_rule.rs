//! What an optimizer is: a rule that updates weights, and what it keeps of them.

use crate::device::Result;
use crate::engine::optim::param_group::ParamGroup;
use crate::stage::Param;

/// How weights follow their gradients.
///
/// A rule keeps nothing itself. What it has to remember of a parameter are tensors, of the parameter's shape unless it says
/// otherwise: its state, which the engine keeps beside the weights: zeros at first, in every checkpoint, and with the owner of
/// the tensor alone where the optimizer is sharded. A rule is always given whole tensors, and must do the same with the
/// same bits, since replicas update on their own.
pub trait UpdateRule: Send + Sync {
    /// Name of the rule, by which a checkpoint says whose state it has.
    fn name(&self) -> &str;

    /// Names of the state tensors of a parameter, under which checkpoints keep them.
    fn state(&self, param: &Param) -> &[&'static str];

    /// Extents of the state tensor at `index`. A rule that updates on the host needs those of the parameter.
    fn state_shape(&self, param: &Param, _index: usize) -> Vec<usize> {
        param.shape.clone()
    }

    /// Extents of what is kept of a parameter: at 0 of itself, behind it of its state tensors.
    fn slot_shape(&self, param: &Param, slot: usize) -> Vec<usize> {
        match slot.checked_sub(1) {
            Some(index) => self.state_shape(param, index),
            None => param.shape.clone(),
        }
    }

    /// Elements of all state tensors of a parameter.
    fn n_state_elements(&self, param: &Param) -> usize {
        let n_elements = |index| self.state_shape(param, index).iter().product::<usize>();
        (0..self.state(param).len()).map(n_elements).sum()
    }

    /// Whether the gradients of linear layers [shown](Param::shown) are to be preconditioned by K-FAC before the update. The
    /// state of their matrices is that of the rule `kfac`.
    fn preconditions(&self) -> bool {
        false
    }

    /// Whether the rule multiplies matrices, by [`HostTensor::product`](crate::engine::HostTensor::product). A training on a
    /// device without products is refused before its first step.
    fn needs_products(&self) -> bool {
        false
    }

    /// Updates the weights and the state of some parameters.
    ///
    /// # Errors
    /// If the device fails: the run ends.
    fn update(&self, group: ParamGroup<'_>) -> Result<()>;
}
