//! Functions of each element.

use chimera_core::device::Result;
use chimera_core::layers::Activation;

use crate::gpu::Gpu;
use crate::shader::{ACTIVATION, Constants, Kernel};
use crate::tensor::Tensor;
use crate::tuning::Tuning;

static FORWARD: Kernel =
    Kernel { source: &ACTIVATION, entry: "forward", n_written: 1, n_read: 1, n_numbers: 1 };
static BACKWARD: Kernel =
    Kernel { source: &ACTIVATION, entry: "backward", n_written: 2, n_read: 2, n_numbers: 1 };

impl Gpu {
    pub(crate) fn activation(&self, x: &Tensor, f: Activation) -> Result<Tensor> {
        let op = "activation";
        let y = self.tensor(op, x.shape())?;
        self.each_by(op, &FORWARD, self.tuning().activation_constants(f), &[&y, x], &[])?;
        Ok(y)
    }

    pub(crate) fn activation_dx(
        &self,
        dy: &Tensor,
        x: &Tensor,
        f: Activation,
    ) -> Result<(Tensor, Tensor)> {
        let op = "activation_dx";
        let (dx, y) = (self.tensor(op, x.shape())?, self.tensor(op, x.shape())?);
        self.each_by(op, &BACKWARD, self.tuning().activation_constants(f), &[&dx, &y, dy, x], &[])?;
        Ok((dx, y))
    }
}

impl Tuning {
    pub(super) fn activation_constants(&self, f: Activation) -> Constants {
        let function = match f {
            Activation::GeluTanh => 0,
            Activation::Gelu => 1,
            Activation::Tanh => 2,
            Activation::Silu => 3,
        };
        let mut constants = self.element_constants();
        constants.push(("FUNCTION", function));
        constants
    }
}
