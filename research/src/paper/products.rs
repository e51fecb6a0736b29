//! The time of matrix products by their size, and what PyTorch saved of them.

use chimera_core::costs::{Costs, StageCosts};
use chimera_core::ids::WorkerId;
use chimera_core::model::{Cut, ModelConfig};
use chimera_core::op::{Kind, Op};

/// Products of a block's forward: queries, keys, values, scores, their mixture, the projection, and
/// two of the MLP.
const OF_BLOCK: f64 = 8.0;

/// Returns the products of a stage's forward.
pub(super) fn products(cut: &Cut) -> f64 {
    OF_BLOCK * cut.blocks.len() as f64 + f64::from(u8::from(cut.last))
}

/// Returns the bytes that PyTorch saves of a sample in a block in f32: the count of Korthikanti et
/// al. (2022), `s h (34 + 5 a s / h)` in f16, with elements of twice the size and masks of the same.
pub(super) fn saved(model: &ModelConfig, sequence: usize) -> f64 {
    let [s, h, a] = [sequence, model.hidden, model.heads].map(|n| n as f64);
    66.0 * s * h + 9.0 * a * s * s
}

/// Costs of ops, each of whose products takes some time whatever its size.
pub(super) struct Launched {
    pub(super) compute: StageCosts,
    /// This time for a forward, by stage. A backward has twice as many products.
    pub(super) forwards: Vec<f64>,
}

impl Costs for Launched {
    fn base(&self) -> Option<&dyn Costs> {
        Some(&self.compute)
    }

    fn op(&self, worker: WorkerId, op: &Op) -> f64 {
        let forwards = match op.kind {
            Kind::Backward => 2.0,
            Kind::Forward | Kind::Recompute | Kind::BackwardInput | Kind::BackwardWeight => 1.0,
            _ => 0.0,
        };
        self.compute.op(worker, op) + forwards * self.forwards[op.stage.index()]
    }

    fn pair(&self, worker: WorkerId, a: &Op, b: &Op) -> f64 {
        self.op(worker, a) + self.op(worker, b)
    }
}
