//! The pass that removes the ops of frozen stages that no other stage needs.

use crate::effects::{Demand, Rules};
use crate::ir::ids::StageId;
use crate::ir::op::{Cell, Kind, Op};
use crate::ir::timetable::Timetable;

/// Freezes stages, in addition to those that are frozen already.
///
/// A frozen stage before all trained ones keeps only its forwards. Another frozen stage passes
/// gradients on: of its backwards only the input halves stay. The order of the other ops does not
/// change. Apply this pass before those that place recomputations, weight halves and moves.
pub fn freeze(timetable: Timetable, stages: &[StageId]) -> Timetable {
    let frozen = [&timetable.frozen[..], stages].concat();
    let demand = Demand::new(&timetable.graph, &frozen);
    let rows = timetable.rows.iter();
    let rows = rows.map(|row| row.iter().filter_map(|cell| wanted_cell(cell, &demand)).collect());
    let (rows, frozen) = (rows.collect(), demand.frozen().to_vec());
    let mut frozen = Timetable { rows, frozen, ..timetable };
    let rules = Rules::of(&frozen);
    frozen.selective.retain(|(pipe, stage)| rules.is_recomputed(*pipe, *stage));
    frozen
}

/// Freezes all stages: only forwards stay, in their order. Such a program evaluates, or generates.
pub fn forward_only(timetable: Timetable) -> Timetable {
    let stages: Vec<StageId> = timetable.graph.stages().collect();
    freeze(timetable, &stages)
}

/// The wanted part of a cell.
fn wanted_cell(cell: &Cell, demand: &Demand) -> Option<Cell> {
    let mut ops = cell.ops().filter_map(|op| wanted_op(op, demand));
    let first = ops.next()?;
    Some(ops.next().map_or(Cell::One(first), |second| Cell::Pair(first, second)))
}

/// The wanted part of an op.
fn wanted_op(op: Op, demand: &Demand) -> Option<Op> {
    let input_half = Op { kind: Kind::BackwardInput, ..op };
    let parts = if op.kind == Kind::Backward { [op, input_half] } else { [op, op] };
    parts.into_iter().find(|part| demand.wants(part.kind, part.stage))
}
