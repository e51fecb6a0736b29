//! Elementwise operations.

use chimera_core::device::Result;

use super::number;
use crate::gpu::{Call, Gpu};
use crate::shader::{Constants, Kernel, POINTWISE};
use crate::tensor::Tensor;

static FILL: Kernel =
    Kernel { source: &POINTWISE, entry: "fill", n_written: 1, n_read: 0, n_numbers: 2 };
static ACCUMULATE: Kernel =
    Kernel { source: &POINTWISE, entry: "accumulate", n_written: 1, n_read: 1, n_numbers: 1 };
impl Gpu {
    pub(crate) fn fill(&self, op: &'static str, tensor: &Tensor, value: f32) -> Result<()> {
        self.each(op, &FILL, &[tensor], &[value.to_bits()])
    }

    pub(crate) fn accumulate(&self, into: &Tensor, x: &Tensor) -> Result<()> {
        assert_eq!(into.shape(), x.shape(), "accumulate");
        self.each("accumulate", &ACCUMULATE, &[into, x], &[])
    }

    /// Runs a kernel over tensors of one size. Its numbers are that size, then `numbers`.
    pub(super) fn each(
        &self,
        op: &'static str,
        kernel: &'static Kernel,
        operands: &[&Tensor],
        numbers: &[u32],
    ) -> Result<()> {
        self.each_by(op, kernel, self.tuning().element_constants(), operands, numbers)
    }

    /// Runs [`each`](Gpu::each) with other constants.
    pub(super) fn each_by(
        &self,
        op: &'static str,
        kernel: &'static Kernel,
        constants: Constants,
        operands: &[&Tensor],
        numbers: &[u32],
    ) -> Result<()> {
        let n = operands.first().map_or(0, |operand| operand.n_elements());
        for block in self.blocks(op, n, 1, 1)? {
            let len = block.len();
            let slices: Vec<_> = operands.iter().map(|t| t.slice(block.start, len)).collect();
            self.run(
                op,
                &Call {
                    kernel,
                    constants: constants.clone(),
                    operands: &slices,
                    numbers: &[&[number(len)], numbers].concat(),
                    groups: self.element_grid(len),
                },
            )?;
        }
        Ok(())
    }
}
