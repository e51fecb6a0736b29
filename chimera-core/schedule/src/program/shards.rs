//! Weights that the replicas of a stage share (ZeRO stage 3): between uses each replica holds its
//! shard, and gathers the others before it reads the weights.

use std::fmt;

use super::Program;
use crate::ir::ids::{StageId, WorkerId};
use crate::ir::op::{Kind, Op};

/// One gathering of a stage's weights on a worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Gathering {
    /// The stage.
    pub stage: StageId,
    /// The worker that gathers.
    pub to: WorkerId,
    /// Number of the gathering among all of that worker.
    pub number: u32,
}

/// An instruction of a worker for sharded weights.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ShardOp {
    /// Send this worker's shard to the worker that gathers; never waits.
    Share(Gathering),
    /// Wait for the shards of all replicas: the weights of the stage are whole then.
    Gather(Gathering),
    /// Release all of a stage's weights except the own shard.
    Drop(StageId),
}

impl ShardOp {
    /// The stage with these weights.
    pub fn stage(&self) -> StageId {
        match *self {
            ShardOp::Share(Gathering { stage, .. })
            | ShardOp::Gather(Gathering { stage, .. })
            | ShardOp::Drop(stage) => stage,
        }
    }

    /// The worker that may go on after it.
    pub(crate) fn receiver(&self) -> Option<WorkerId> {
        match self {
            ShardOp::Share(gathering) => Some(gathering.to),
            ShardOp::Gather(_) | ShardOp::Drop(_) => None,
        }
    }

    /// The instruction as an object of JSON.
    pub(crate) fn to_json(self) -> String {
        let stage = self.stage().0;
        match self {
            ShardOp::Share(Gathering { to, number, .. }) => {
                format!(r#"{{"do":"share","stage":{stage},"to":{},"gathering":{number}}}"#, to.0)
            }
            ShardOp::Gather(Gathering { number, .. }) => {
                format!(r#"{{"do":"gather","stage":{stage},"gathering":{number}}}"#)
            }
            ShardOp::Drop(_) => format!(r#"{{"do":"drop","stage":{stage}}}"#),
        }
    }
}

impl fmt::Display for ShardOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShardOp::Share(Gathering { stage, to, .. }) => {
                write!(f, "the shard of {stage} for {to}")
            }
            ShardOp::Gather(Gathering { stage, .. }) => write!(f, "the weights of {stage}"),
            ShardOp::Drop(stage) => write!(f, "the release of {stage}"),
        }
    }
}

impl Program {
    /// Returns true if the replicas of each trained stage share its weights.
    pub fn shards_weights(&self) -> bool {
        self.rules.shards_weights
    }

    /// The workers with shards of a stage, in order: all that hold a tensor of it, also as a tied
    /// tensor of another stage. In a job of several groups, those of every group.
    pub fn sharers(&self, stage: StageId) -> Vec<WorkerId> {
        let buckets = self.buckets_of_update().iter();
        let its = buckets.filter(|bucket| bucket.stages.contains(&stage));
        let mut sharers: Vec<WorkerId> = its.flat_map(|bucket| bucket.members.clone()).collect();
        sharers.sort_unstable();
        sharers.dedup();
        sharers
    }

    /// Returns true if an op reads weights that are shared.
    pub(crate) fn reads_shards(&self, op: &Op) -> bool {
        let reads = match op.kind {
            Kind::Forward | Kind::Recompute | Kind::Backward | Kind::BackwardInput => true,
            Kind::BackwardWeight
            | Kind::Offload
            | Kind::Reload
            | Kind::Keep
            | Kind::Return
            | Kind::Work(_) => false,
        };
        reads && self.rules.shards_weights && self.rules.demand().trains(op.stage)
    }
}
