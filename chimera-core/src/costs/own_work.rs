//! What work beside the training takes.

use super::{Costs, PerStage};
use crate::effects::Token;
use crate::ids::{BucketId, WorkerId};
use crate::op::{Kind, Op};

/// Costs of a training, with those of the pieces of [`OwnWork`](crate::effects::OwnWork) that is done beside it.
#[derive(Clone, Debug)]
pub struct WithOwnWork<'c, C> {
    training: &'c C,
    /// By work: what a piece takes, by stage.
    takes: Vec<PerStage>,
}

impl<'c, C: Costs> WithOwnWork<'c, C> {
    /// By work what a piece takes, in the unit of `training`.
    pub fn new(training: &'c C, takes: Vec<PerStage>) -> WithOwnWork<'c, C> {
        WithOwnWork { training, takes }
    }
}

impl<C: Costs> Costs for WithOwnWork<'_, C> {
    fn op(&self, worker: WorkerId, op: &Op) -> f64 {
        match op.kind {
            Kind::Work(id) => self.takes.get(id.index()).map_or(0.0, |t| t.at(op.stage.index())),
            _ => self.training.op(worker, op),
        }
    }

    fn pair(&self, worker: WorkerId, a: &Op, b: &Op) -> f64 {
        self.training.pair(worker, a, b)
    }

    fn move_occupies(&self, worker: WorkerId, op: &Op) -> f64 {
        self.training.move_occupies(worker, op)
    }

    fn message(&self, token: &Token) -> f64 {
        self.training.message(token)
    }

    fn occupies(&self, token: &Token) -> f64 {
        self.training.occupies(token)
    }

    fn reduce_occupies(&self, bucket: BucketId) -> f64 {
        self.training.reduce_occupies(bucket)
    }

    fn reduce(&self, bucket: BucketId) -> f64 {
        self.training.reduce(bucket)
    }

    fn links(&self, bucket: BucketId) -> &[(usize, f64)] {
        self.training.links(bucket)
    }

    fn agree(&self) -> f64 {
        self.training.agree()
    }

    fn step(&self, bucket: BucketId) -> f64 {
        self.training.step(bucket)
    }
}
