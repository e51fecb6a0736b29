//! The units with moved saved activations.

use super::UnitAt;
use crate::ir::ids::WorkerId;
use crate::ir::op::{Cell, Kind};
use crate::ir::timetable::Timetable;

/// Units with moved saved activations. Sorted.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct MovedUnits {
    pub(super) offloaded: Vec<UnitAt>,
    /// Units that another worker keeps, with the worker.
    pub(super) kept: Vec<(UnitAt, WorkerId)>,
}

impl MovedUnits {
    pub(super) fn of(timetable: &Timetable) -> MovedUnits {
        let mut moves = MovedUnits::default();
        for (worker, row) in (0..).map(WorkerId).zip(&timetable.rows) {
            for op in row.iter().flat_map(Cell::ops) {
                let units = op.span.units().map(|unit| (op.pipe, op.stage, unit));
                match op.kind {
                    Kind::Offload => moves.offloaded.extend(units),
                    Kind::Keep => moves.kept.extend(units.map(|unit| (unit, worker))),
                    _ => {}
                }
            }
        }
        moves.offloaded.sort_unstable();
        moves.kept.sort_unstable();
        moves
    }
}
