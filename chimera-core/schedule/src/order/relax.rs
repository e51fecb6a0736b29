//! A relaxed problem with a tighter bound: combined ops of a timetable, taken apart.

use super::bound::lower_bound;
use super::capped::capped_bound;
use super::choice::choice_bound;
use super::graph::Graph;
use crate::costs::{Costs, is_shorter, of_cell};
use crate::ir::ids::WorkerId;
use crate::ir::op::{Cell, Kind, Op};
use crate::ir::timetable::Timetable;

/// A lower bound on the makespan of any order of the cells of the timetable, with graph `graph`,
/// under the limit.
///
/// An order of pairs and whole backwards is an order of their parts too, unless pairs save time. So
/// the bound of the parts holds as well. It is the better one where cells mix them, since the bound
/// under a limit considers ops of one kind only.
pub(crate) fn bound(
    timetable: &Timetable,
    graph: &Graph,
    costs: &impl Costs,
    max_peak: Option<f64>,
) -> f64 {
    let of = |graph: &Graph| {
        max_peak.map_or_else(
            || lower_bound(graph),
            |most| capped_bound(graph, most).max(choice_bound(graph, costs, most, false)),
        )
    };
    let parts = if is_mixed(timetable) { apart(timetable, costs) } else { None };
    parts.map_or(0.0, |parts| of(&Graph::of(&parts, costs))).max(of(graph))
}

/// A timetable of combined ops taken apart, if that does not take longer anywhere.
pub(crate) fn parts(timetable: &Timetable, costs: &impl Costs) -> Option<Timetable> {
    let has_pair = timetable.rows.iter().flatten().any(|cell| matches!(cell, Cell::Pair(..)));
    let is_combined = has_pair || timetable.has(Kind::Backward);
    if is_combined { apart(timetable, costs) } else { None }
}

/// Returns true if some ops are combined in one place and separate in another.
fn is_mixed(timetable: &Timetable) -> bool {
    let has_pair = timetable.rows.iter().flatten().any(|cell| matches!(cell, Cell::Pair(..)));
    has_pair || timetable.has(Kind::Backward) && timetable.has(Kind::BackwardInput)
}

/// Separates all pairs, and splits every backward, with weight halves in the order of their input
/// halves. `None` if that would take longer anywhere.
fn apart(timetable: &Timetable, costs: &impl Costs) -> Option<Timetable> {
    let mut rows = Vec::new();
    for (worker, row) in (0..).map(WorkerId).zip(&timetable.rows) {
        let mut parts = Vec::with_capacity(row.len());
        for cell in row {
            let takes: f64 = cell.ops().flat_map(halves).map(|op| costs.op(worker, &op)).sum();
            if is_shorter(of_cell(costs, worker, cell), takes) {
                return None;
            }
            for op in cell.ops().flat_map(halves) {
                match op.kind {
                    Kind::BackwardWeight => {}
                    Kind::BackwardInput => {
                        parts.extend([op, Op { kind: Kind::BackwardWeight, ..op }].map(Cell::One));
                    }
                    _ => parts.push(Cell::One(op)),
                }
            }
        }
        rows.push(parts);
    }
    Some(Timetable { rows, ..timetable.clone() })
}

fn halves(op: Op) -> impl Iterator<Item = Op> {
    let kinds: &[Kind] = match op.kind {
        Kind::Backward => &[Kind::BackwardInput, Kind::BackwardWeight],
        Kind::Forward => &[Kind::Forward],
        Kind::BackwardInput => &[Kind::BackwardInput],
        Kind::BackwardWeight => &[Kind::BackwardWeight],
        Kind::Recompute => &[Kind::Recompute],
        Kind::Offload | Kind::Reload | Kind::Keep | Kind::Return | Kind::Work(_) => &[],
    };
    kinds.iter().map(move |kind| Op { kind: *kind, ..op })
}
