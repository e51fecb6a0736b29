//! Dropout.

use chimera_core::device::Result;
use chimera_core::layers::Dropout;

use super::number;
use crate::gpu::{Call, Gpu};
use crate::shader::{DROPOUT, Kernel};
use crate::tensor::Tensor;

static KERNEL: Kernel =
    Kernel { source: &DROPOUT, entry: "dropout", n_written: 1, n_read: 2, n_numbers: 8 };

impl Gpu {
    pub(crate) fn dropout(
        &self,
        x: &Tensor,
        by: &Dropout,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let op = "dropout";
        let y = self.tensor(op, x.shape())?;
        for block in self.blocks(op, x.n_elements(), 1, 1)? {
            let (start, len) = (block.start, block.len());
            let around = residual.map(|residual| residual.slice(start, len));
            let first = by.first.wrapping_add(start as u64);
            let numbers = [
                number(len),
                by.key[0],
                by.key[1],
                first as u32,
                (first >> 32) as u32,
                u32::from(by.threshold()),
                (by.scale() as f32).to_bits(),
                around.is_some().into(),
            ];
            let read = [x.slice(start, len), around.unwrap_or(self.nothing())];
            self.run(
                op,
                &Call {
                    kernel: &KERNEL,
                    constants: self.tuning().element_constants(),
                    operands: &[&[y.slice(start, len)][..], &read].concat(),
                    numbers: &numbers,
                    groups: self.element_grid(len),
                },
            )?;
        }
        Ok(y)
    }
}
