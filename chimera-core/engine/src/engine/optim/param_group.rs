//! The parameters of one update, as a rule sees them; their tensors stay on their device.

use crate::device::reference::Tensor;
use crate::device::{AdamW, Products, Result, Sgd};
use crate::engine::Training;
use crate::stage::Param;

/// Some parameters of a stage, with the hyperparameters of one update.
///
/// A rule updates all of them by one function of the device, such as [`adamw`](ParamGroup::adamw),
/// or each on the host ([`on_host`](ParamGroup::on_host)), which works with every device.
pub struct ParamGroup<'g> {
    /// Hyperparameters of the training; the fields below hold the values for this update.
    pub training: &'g Training,
    /// Learning rate of the step, for these parameters.
    pub lr: f64,
    /// Decoupled weight decay, for these parameters.
    pub weight_decay: f64,
    /// Number of the update, from 1.
    pub update: u64,
    /// Factor to apply to gradients first, for clipping.
    pub grad_scale: f64,
    /// Whether the gradients of these parameters are preconditioned.
    pub is_preconditioned: bool,
    pub(crate) tensors: Box<dyn GroupTensors<'g> + 'g>,
}

/// One parameter on the host, in f64, which represents the values of every device type exactly.
pub struct HostTensor<'t> {
    /// Name and shape.
    pub param: &'t Param,
    /// Weights, row-major.
    pub weights: &'t mut [f64],
    /// Gradient, after clipping.
    pub gradient: &'t [f64],
    /// State tensors, in the order of [`UpdateRule::state`](crate::engine::UpdateRule::state).
    pub state: Vec<&'t mut [f64]>,
    pub(crate) products: &'t dyn Products<Tensor>,
}

impl HostTensor<'_> {
    /// `a bᵀ` of two matrices, in the precision of the device, for rules that
    /// [need products](crate::engine::UpdateRule::needs_products).
    pub fn product(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.products.product(a, b)
    }

    /// Iterations of [`Products::newton_schulz`], in the precision of the device, for such rules.
    pub fn newton_schulz(&self, x: &Tensor, coefficients: [f64; 3], n: usize) -> Result<Tensor> {
        self.products.newton_schulz(x, coefficients, n)
    }
}

impl<'g> ParamGroup<'g> {
    /// Splits off the parameters for which `is_first` returns true; returns them and the others.
    pub fn split(self, is_first: impl Fn(&Param) -> bool) -> (ParamGroup<'g>, ParamGroup<'g>) {
        let (first, others) = self.tensors.split(&is_first);
        (ParamGroup { tensors: first, ..self }, ParamGroup { tensors: others, ..self })
    }

    /// Updates the parameters by the device's AdamW; their first two state tensors are the moments.
    pub fn adamw(mut self) -> Result<()> {
        let by = self.moments();
        self.tensors.adamw(&by)
    }

    /// Updates the parameters by the device's LAMB; their first two state tensors are the moments.
    pub fn lamb(mut self) -> Result<()> {
        let by = self.moments();
        self.tensors.lamb(&by)
    }

    /// Updates the parameters by the device's gradient descent; the first state is the momentum.
    pub fn sgd(mut self) -> Result<()> {
        let ParamGroup { training, lr, weight_decay, grad_scale, .. } = self;
        let momentum = training.momentum;
        self.tensors.sgd(&Sgd { lr, momentum, weight_decay, grad_scale })
    }

    /// Updates each parameter on the host, by calling `update` with its values.
    pub fn on_host(mut self, mut update: impl FnMut(HostTensor<'_>) -> Result<()>) -> Result<()> {
        self.tensors.on_host(self.grad_scale, &mut update)
    }

    pub(super) fn moments(&self) -> AdamW {
        let ParamGroup { training, lr, weight_decay, update, grad_scale, .. } = *self;
        let Training { beta1, beta2, eps, .. } = *training;
        AdamW { lr, beta1, beta2, eps, weight_decay, update, grad_scale }
    }
}

/// The tensors of a group, on a device of any type.
pub(crate) trait GroupTensors<'g> {
    fn split(
        self: Box<Self>,
        is_first: &dyn Fn(&Param) -> bool,
    ) -> (Box<dyn GroupTensors<'g> + 'g>, Box<dyn GroupTensors<'g> + 'g>);

    fn adamw(&mut self, by: &AdamW) -> Result<()>;

    fn lamb(&mut self, by: &AdamW) -> Result<()>;

    fn sgd(&mut self, by: &Sgd) -> Result<()>;

    fn on_host(
        &mut self,
        grad_scale: f64,
        update: &mut dyn FnMut(HostTensor<'_>) -> Result<()>,
    ) -> Result<()>;
}
