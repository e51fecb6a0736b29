//! Workers of different speeds.

use super::Costs;
use crate::ir::ids::WorkerId;
use crate::ir::op::{Lane, Op};

/// Costs with compute that is slower on some workers. Messages, moves, reductions and updates take
/// the same time everywhere.
#[derive(Clone, Debug)]
pub struct UnevenCosts<C> {
    compute: C,
    /// Speed of each worker, where 1 is the speed that the costs assume.
    speeds: Vec<f64>,
}

impl<C> UnevenCosts<C> {
    /// Costs on workers of these speeds, where 1 is the speed that `compute` assumes. Workers
    /// without a speed have 1.
    pub fn new(compute: C, speeds: Vec<f64>) -> UnevenCosts<C> {
        UnevenCosts { compute, speeds }
    }

    fn speed(&self, worker: WorkerId) -> f64 {
        self.speeds.get(worker.index()).copied().unwrap_or(1.0)
    }
}

impl<C: Costs> Costs for UnevenCosts<C> {
    fn base(&self) -> Option<&dyn Costs> {
        Some(&self.compute)
    }

    fn op(&self, worker: WorkerId, op: &Op) -> f64 {
        let takes = self.compute.op(worker, op);
        match op.kind.lane() {
            Lane::Moves => takes,
            _ => takes / self.speed(worker),
        }
    }

    fn pair(&self, worker: WorkerId, a: &Op, b: &Op) -> f64 {
        self.compute.pair(worker, a, b) / self.speed(worker)
    }
}
