//! Reductions that occupy their workers.

use super::*;
use crate::ir::op::Op;
use crate::lower::{Lowering, Sync, lower};
use crate::schedule::{Shape, find};

/// Forwards take 1, backwards 2, and reductions 3 in addition to the time that their starts
/// occupy a worker.
struct Reduced(f64);

impl Costs for Reduced {
    fn op(&self, worker: WorkerId, op: &Op) -> f64 {
        crate::costs::UniformCosts::new(1.0, 2.0, 0.0).op(worker, op)
    }

    fn reduce_occupies(&self, _: BucketId) -> f64 {
        self.0
    }

    fn reduce(&self, _: BucketId) -> f64 {
        3.0
    }
}

#[test]
fn the_start_of_a_reduction_takes_time_of_its_worker() {
    let timetable = find("chimera").unwrap().timetable(&Shape::new(2, 2)).unwrap();
    let how = Lowering { sync: Sync::AtEnd, ..Lowering::default() };
    let program = lower(&timetable, &how).unwrap();
    let ends = |occupies: f64| simulate(&program, &Reduced(occupies)).makespan();
    // Both stages are on both workers, whose reductions run one after the other; each starts
    // both at once.
    assert_eq!(ends(0.0), 6.0 + 2.0 * 3.0);
    assert_eq!(ends(0.5), 6.0 + 0.5 + 2.0 * 3.0);
    // If that takes as long as a reduction, they wait for it.
    assert_eq!(ends(4.0), 6.0 + 2.0 * 4.0 + 3.0);
}
