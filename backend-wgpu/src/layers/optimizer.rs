//! Weight updates.

use chimera_core::device::{AdamW, Result, Sgd, Updated, WithMomentum};

use super::number;
use crate::gpu::{Call, Gpu};
use crate::shader::{Kernel, OPTIMIZER};
use crate::tensor::Tensor;

static ADAMW: Kernel =
    Kernel { source: &OPTIMIZER, entry: "adamw", n_written: 3, n_read: 1, n_numbers: 11 };
static LAMB: Kernel =
    Kernel { source: &OPTIMIZER, entry: "lamb", n_written: 3, n_read: 2, n_numbers: 11 };
static TRUST: Kernel =
    Kernel { source: &OPTIMIZER, entry: "trust", n_written: 1, n_read: 3, n_numbers: 2 };
static SGD: Kernel =
    Kernel { source: &OPTIMIZER, entry: "sgd", n_written: 2, n_read: 1, n_numbers: 5 };

impl Gpu {
    pub(crate) fn adamw(&self, tensor: &Updated<'_, Tensor>, by: &AdamW) -> Result<()> {
        let Updated { w, g, m, v } = tensor;
        self.each("adamw", &ADAMW, &[w, m, v, g], &numbers(by))
    }

    pub(crate) fn lamb(&self, tensor: &Updated<'_, Tensor>, by: &AdamW) -> Result<()> {
        let Updated { w, g, m, v } = tensor;
        let op = "lamb";
        let direction = self.tensor(op, w.shape())?;
        self.each(op, &LAMB, &[&direction, m, v, g, w], &numbers(by))?;
        let norms = self.squared_norms(op, &[w, &direction])?;
        for block in self.blocks(op, w.n_elements(), 1, 1)? {
            let (start, len) = (block.start, block.len());
            let [w, direction] = [w, &direction].map(|t| t.slice(start, len));
            self.run(
                op,
                &Call {
                    kernel: &TRUST,
                    constants: self.tuning().element_constants(),
                    operands: &[w, direction, norms.slice(0, 1), norms.slice(1, 1)],
                    numbers: &[number(len), (by.lr as f32).to_bits()],
                    groups: self.element_grid(len),
                },
            )?;
        }
        Ok(())
    }

    pub(crate) fn sgd(&self, tensor: &WithMomentum<'_, Tensor>, by: &Sgd) -> Result<()> {
        let WithMomentum { w, g, m } = tensor;
        let numbers = [by.lr, by.momentum, by.weight_decay, by.grad_scale];
        self.each("sgd", &SGD, &[w, m, g], &numbers.map(|x| (x as f32).to_bits()))
    }
}

/// Returns arguments of Adam's kernels; differences from 1 are taken in f64.
fn numbers(by: &AdamW) -> [u32; 10] {
    let [unbias1, unbias2] = by.corrections().map(|correction| 1.0 / correction);
    let AdamW { lr, beta1, beta2, eps, weight_decay, grad_scale, .. } = *by;
    let numbers = [
        lr,
        beta1,
        1.0 - beta1,
        beta2,
        1.0 - beta2,
        eps,
        unbias1,
        unbias2,
        weight_decay,
        grad_scale,
    ];
    numbers.map(|x| (x as f32).to_bits())
}
