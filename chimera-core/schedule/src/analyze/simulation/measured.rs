//! Measured costs, to compare an engine's step with the simulation of its own ops.

use rustc_hash::FxHashMap;

use super::timeline::{Timeline, Work};
use crate::costs::Costs;
use crate::ir::ids::{BucketId, WorkerId};
use crate::ir::op::{Cell, Op};

/// The time that each cell of a measured timeline took. Messages and reductions are free.
#[derive(Clone, Debug, Default)]
pub struct MeasuredCosts {
    cells: FxHashMap<(WorkerId, Op), f64>,
    steps: FxHashMap<BucketId, f64>,
}

impl MeasuredCosts {
    /// The durations of a measured step. An update of a bucket takes as long as on its slowest
    /// replica.
    pub fn of(timeline: &Timeline) -> MeasuredCosts {
        let mut costs = MeasuredCosts::default();
        for event in &timeline.events {
            let took = event.end - event.start;
            match event.work {
                Work::Cell(Cell::One(op) | Cell::Pair(op, _)) | Work::Move(op) => {
                    costs.cells.insert((event.worker, op), took);
                }
                Work::Step(bucket) => {
                    let slowest = costs.steps.entry(bucket).or_default();
                    *slowest = slowest.max(took);
                }
                Work::Reduce(_) => {}
            }
        }
        costs
    }
}

impl Costs for MeasuredCosts {
    fn op(&self, worker: WorkerId, op: &Op) -> f64 {
        self.cells.get(&(worker, *op)).copied().unwrap_or(0.0)
    }

    /// The engine runs moves on the thread of the worker.
    fn move_occupies(&self, worker: WorkerId, op: &Op) -> f64 {
        self.op(worker, op)
    }

    fn step(&self, bucket: BucketId) -> f64 {
        self.steps.get(&bucket).copied().unwrap_or(0.0)
    }
}
