//! The loss and its gradient, which reuses the memory of the logits.

use chimera_core::device::Result;
use chimera_core::layers::{IGNORED, Loss};

use super::sums::Parts;
use super::{Arg, Driver, Gpu, Tensor, float, int};

/// Threads per row: a vocabulary is wide.
pub(super) const THREADS: usize = 1024;

impl<D: Driver> Loss for Gpu<D> {
    fn cross_entropy(
        &self,
        logits: Tensor<D::Memory>,
        targets: &[u32],
        scale: f64,
    ) -> Result<(Tensor<D::Memory>, Tensor<D::Memory>)> {
        let logits = self.matrix(&logits)?;
        let rows = logits.n_rows();
        assert_eq!(rows, targets.len(), "cross_entropy");
        let width = logits.width();
        let wrong = |target: &&u32| **target != IGNORED && **target as usize >= width;
        if let Some(target) = targets.iter().find(wrong) {
            let reason =
                format!("target {target} is not below {width}, the size of the vocabulary");
            return Err(self.failed("cross_entropy", reason));
        }
        let targets = self.indices(targets)?;
        let losses = Parts { memory: self.allocate(rows * size_of::<f64>())?, n: rows };
        let args = [
            logits.write(),
            Arg::Read(&targets, 0),
            Arg::Write(&losses.memory, 0),
            int(logits.width()),
            int(logits.pitch),
            float(scale),
        ];
        self.run("cross_entropy", [rows, 1], THREADS, &args)?;
        Ok((self.sum(&losses, scale)?, logits))
    }
}
