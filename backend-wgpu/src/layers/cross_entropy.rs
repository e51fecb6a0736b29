//! Softmax cross-entropy.

use chimera_core::device::Result;

use super::number;
use crate::gpu::{Call, Gpu};
use crate::shader::{CROSS_ENTROPY, Kernel};
use crate::tensor::Tensor;

static KERNEL: Kernel = Kernel {
    source: &CROSS_ENTROPY,
    entry: "cross_entropy",
    n_written: 2,
    n_read: 1,
    n_numbers: 3,
};

impl Gpu {
    /// The gradient reuses the memory of the logits.
    pub(crate) fn cross_entropy(
        &self,
        logits: Tensor,
        targets: &[u32],
        scale: f64,
    ) -> Result<(Tensor, Tensor)> {
        let op = "cross_entropy";
        let (rows, vocab) = (logits.n_rows(), logits.width());
        assert_eq!(rows, targets.len(), "{op}");
        self.check_rounds(op, 2 * vocab.div_ceil(4 * self.tuning().lanes as usize))?;
        let targets = self.upload_ids(op, targets)?;
        let losses = self.tensor(op, &[rows])?;
        for block in self.blocks(op, rows, vocab, 1)? {
            let (start, len) = (block.start, block.len());
            let [logits, losses, targets] =
                [&logits, &losses, &targets].map(|t| t.rows(start, len));
            self.run(
                op,
                &Call {
                    kernel: &KERNEL,
                    constants: self.tuning().row_constants(),
                    operands: &[logits.all(), losses.all(), targets.all()],
                    numbers: &[number(len), number(vocab), (scale as f32).to_bits()],
                    groups: self.row_grid(len),
                },
            )?;
        }
        Ok((self.sum(op, &losses)?, logits))
    }
}
