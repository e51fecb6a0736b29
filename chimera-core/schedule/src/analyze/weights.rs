//! Memory of weights that replicas share (ZeRO stage 3): a stage's weights are whole from their
//! gathering until they are released, and before and after that a worker only has its shard.

use crate::ir::ids::StageId;
use crate::program::{Instr, ShardOp};

/// Sizes of trained weights and of shards of them, in bytes or in any other unit.
#[derive(Clone, PartialEq, Debug)]
pub struct WeightSizes {
    /// By stage.
    pub whole: Vec<f64>,
    /// By worker and stage: the size of the shard that the worker keeps.
    pub kept: Vec<Vec<f64>>,
}

impl WeightSizes {
    /// Returns sizes in a unit of which one element takes `n`.
    #[must_use]
    pub fn times(mut self, n: f64) -> WeightSizes {
        self.whole.iter_mut().for_each(|size| *size *= n);
        self.kept.iter_mut().flatten().for_each(|size| *size *= n);
        self
    }

    /// The change at an instruction of a worker's row.
    pub(super) fn change(&self, worker: usize, instr: &Instr) -> f64 {
        match instr {
            Instr::Shard(ShardOp::Gather(gathering)) => self.others(worker, gathering.stage),
            Instr::Shard(ShardOp::Drop(stage)) => -self.others(worker, *stage),
            _ => 0.0,
        }
    }

    /// The size of the shards of a stage that a worker does not keep.
    pub fn others(&self, worker: usize, stage: StageId) -> f64 {
        self.whole[stage.index()] - self.kept[worker][stage.index()]
    }
}
