//! Costs of a caller's own work.

use super::{Costs, PerStage};
use crate::ir::ids::WorkerId;
use crate::ir::op::{Kind, Op};

/// Costs of a training, and of the pieces of [`OwnWork`](crate::effects::OwnWork) in its idle time.
#[derive(Clone, Debug)]
pub struct WithOwnWork<'c, C> {
    training: &'c C,
    /// The time of a piece by work and stage.
    takes: Vec<PerStage>,
}

impl<'c, C: Costs> WithOwnWork<'c, C> {
    /// Adds the times of pieces, by work, to `training`, in its unit.
    pub fn new(training: &'c C, takes: Vec<PerStage>) -> WithOwnWork<'c, C> {
        WithOwnWork { training, takes }
    }
}

impl<C: Costs> Costs for WithOwnWork<'_, C> {
    fn base(&self) -> Option<&dyn Costs> {
        Some(self.training)
    }

    fn op(&self, worker: WorkerId, op: &Op) -> f64 {
        match op.kind {
            Kind::Work(id) => self.takes.get(id.index()).map_or(0.0, |t| t.at(op.stage.index())),
            _ => self.training.op(worker, op),
        }
    }
}
