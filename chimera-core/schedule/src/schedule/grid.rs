//! The tool for schedules that are a formula: give each op an integer slot, and sort by slot.

use super::{Schedule, Shape};
use crate::ir::ids::{PipeId, StageId};
use crate::ir::op::{Cell, Kind, Op, Span};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;

/// Ops in slots. If every op has a later slot than the ops it depends on, rows sorted by slot never
/// wait for each other in a cycle, for any formula. Ops in the same slot of a worker keep their
/// insertion order.
pub struct Grid {
    placement: Placement,
    rows: Vec<Vec<(u64, Op)>>,
}

impl Grid {
    /// A grid without ops.
    pub fn new(placement: Placement) -> Grid {
        let rows = vec![Vec::new(); placement.n_workers()];
        Grid { placement, rows }
    }

    /// Stages of each pipe.
    pub fn n_stages(&self) -> usize {
        self.placement.n_stages()
    }

    /// Puts an op on the worker of its stage.
    pub fn put(&mut self, slot: u64, kind: Kind, pipe: usize, stage: usize, span: Span) {
        let pipe = PipeId(pipe as u16);
        let stage = StageId(stage as u16);
        let worker = self.placement.worker(pipe, stage);
        self.rows[worker.index()].push((slot, Op { kind, pipe, stage, span }));
    }

    /// The timetable of whole micro-batches.
    pub fn finish(self, schedule: &dyn Schedule, shape: &Shape) -> Timetable {
        self.finish_in_units(schedule, shape, 1)
    }

    /// The timetable of micro-batches that are cut into `units_per_micro` units.
    pub fn finish_in_units(
        mut self,
        schedule: &dyn Schedule,
        shape: &Shape,
        units_per_micro: u32,
    ) -> Timetable {
        let sorted = |row: &mut Vec<(u64, Op)>| {
            row.sort_by_key(|(slot, _)| *slot);
            row.iter().map(|(_, op)| Cell::One(*op)).collect()
        };
        let rows = self.rows.iter_mut().map(sorted).collect();
        let n_micro_batches = shape.n_micro_batches;
        let whole = Timetable::new(schedule.name(), self.placement, n_micro_batches, rows);
        Timetable { units_per_micro, ..whole }
    }
}
