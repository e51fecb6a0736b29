//! Elementwise functions, plain and gated.

use chimera_core::device::Result;
use chimera_core::layers::Activation;

use super::number;
use crate::gpu::{Call, Gpu};
use crate::shader::{ACTIVATION, Constants, Kernel};
use crate::tensor::Tensor;
use crate::tuning::Tuning;

static FORWARD: Kernel =
    Kernel { source: &ACTIVATION, entry: "forward", n_written: 1, n_read: 1, n_numbers: 1 };
static BACKWARD: Kernel =
    Kernel { source: &ACTIVATION, entry: "backward", n_written: 2, n_read: 2, n_numbers: 1 };
static GATED: Kernel =
    Kernel { source: &ACTIVATION, entry: "gated", n_written: 1, n_read: 1, n_numbers: 2 };
static GATED_BACKWARD: Kernel =
    Kernel { source: &ACTIVATION, entry: "gated_backward", n_written: 2, n_read: 2, n_numbers: 2 };

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

    pub(crate) fn gated(&self, x: &Tensor, f: Activation) -> Result<Tensor> {
        let op = "gated";
        let y = self.tensor(op, &[x.n_rows(), x.width() / 2])?;
        self.gate_rows(op, &GATED, f, &[&y, x])?;
        Ok(y)
    }

    pub(crate) fn gated_dx(
        &self,
        dy: &Tensor,
        x: &Tensor,
        f: Activation,
    ) -> Result<(Tensor, Tensor)> {
        let op = "gated_dx";
        let (dx, y) = (self.tensor(op, x.shape())?, self.tensor(op, dy.shape())?);
        self.gate_rows(op, &GATED_BACKWARD, f, &[&dx, &y, dy, x])?;
        Ok((dx, y))
    }

    /// Runs a kernel over rows of gate and up, which are in the last of `operands`.
    fn gate_rows(
        &self,
        op: &'static str,
        kernel: &'static Kernel,
        f: Activation,
        operands: &[&Tensor],
    ) -> Result<()> {
        let x = operands[operands.len() - 1];
        let features = x.width() / 2;
        for block in self.blocks(op, x.n_rows(), x.width(), 1)? {
            let rows: Vec<_> = operands.iter().map(|t| t.rows(block.start, block.len())).collect();
            let n = block.len() * features;
            self.run(
                op,
                &Call {
                    kernel,
                    constants: self.tuning().activation_constants(f),
                    operands: &rows.iter().map(Tensor::all).collect::<Vec<_>>(),
                    numbers: &[n, features].map(number),
                    groups: self.element_grid(n),
                },
            )?;
        }
        Ok(())
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
