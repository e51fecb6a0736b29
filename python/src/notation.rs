//! Ops and timetables as Python values and text.

use chimera_schedule::op::Op;
use chimera_schedule::timetable::Timetable;

/// An op in Python: kind, pipe, stage and units.
pub(crate) type WrittenOp = (char, u16, u16, Vec<u32>);

/// Converts an op to its Python form.
pub(crate) fn written(op: Op) -> WrittenOp {
    (op.kind.letter(), op.pipe.0, op.stage.0, op.span.units().collect())
}

/// Returns a title such as `chimera, D = 4, N = 8`.
pub(crate) fn title(timetable: &Timetable) -> String {
    let (d, n) = (timetable.rows.len(), timetable.micro_batches_per_step());
    let mut title = format!("{}, D = {d}, N = {n}", timetable.schedule);
    if !timetable.graph.is_chain() {
        title = format!("{title}, edges {}", timetable.graph);
    }
    match timetable.update.n_steps() {
        0 | 1 => title,
        steps => format!("{title}, {steps} steps"),
    }
}
