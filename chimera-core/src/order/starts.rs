//! Where a search begins: what the table of schedules has on a placement.

use super::graph::unordered;
use crate::lower::Recompute;
use crate::op::{Cell, Kind};
use crate::placement::Placement;
use crate::schedule::{SCHEDULES, Scaling, Schedule, Shape};
use crate::timetable::Timetable;
use crate::update::Update;

/// What ops an order may have beside forwards and backwards of whole micro-batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allowed {
    /// Input and weight halves of backwards.
    pub split_backwards: bool,
    /// Backwards of half a micro-batch, on smaller kernels.
    pub halved_micro_batches: bool,
    /// What forwards keep; what they do not keep is recomputed, wherever that is best.
    pub recompute: Recompute,
}

/// Every timetable of allowed ops that the table of schedules has on `placement`, whatever its
/// parameters, named with them, and one in no order, for a search to choose from. The latter has split
/// backwards if they are allowed. Nothing is recomputed yet.
pub fn starts(placement: &Placement, n_micro_batches: u32, allowed: Allowed) -> Vec<Timetable> {
    let mut found: Vec<Timetable> = Vec::new();
    for schedule in SCHEDULES.iter().filter(|s| may_have(**s, placement, n_micro_batches)) {
        for (shape, parameter) in shapes(placement, n_micro_batches) {
            let Ok(timetable) = schedule.timetable(&shape) else { continue };
            let is_allowed = timetable.placement == *placement
                && timetable.update == Update::Flush
                && (allowed.split_backwards || !is_split(&timetable))
                && (allowed.halved_micro_batches || timetable.units_per_micro == 1);
            // A parameter that the schedule does not read changes nothing.
            if is_allowed && found.iter().all(|other| other.rows != timetable.rows) {
                let name = format!("{}{parameter}", schedule.name());
                found.push(Timetable { schedule: name, ..timetable });
            }
        }
    }
    found.push(unordered(placement.clone(), n_micro_batches, allowed.split_backwards));
    found
}

/// Whether a schedule has the placement at all: to see by as few micro-batches as any schedule asks for.
fn may_have(schedule: &dyn Schedule, placement: &Placement, n_micro_batches: u32) -> bool {
    let few = 2 * placement.n_workers() as u32;
    let has = |t: Timetable| t.placement == *placement;
    n_micro_batches <= few || schedule.timetable(&shape(placement, few)).is_ok_and(has)
}

fn shape(placement: &Placement, n_micro_batches: u32) -> Shape {
    let n_chunks = placement.n_stages().div_ceil(placement.n_workers().max(1));
    Shape {
        n_pipes: placement.n_pipes(),
        n_chunks,
        n_waves: n_chunks / 2,
        ..Shape::new(placement.n_workers(), n_micro_batches)
    }
}

/// Shapes on a placement, and what is particular to each.
fn shapes(placement: &Placement, n_micro_batches: u32) -> Vec<(Shape, String)> {
    let plain = shape(placement, n_micro_batches);
    let mut shapes = vec![(plain, String::new())];
    for (name, scaling) in &Scaling::ALL[1..] {
        shapes.push((Shape { scaling: *scaling, ..plain }, format!(" --scaling {name}")));
    }
    let d = plain.depth as u32;
    for n_in_turn in 2..=d.min(MOST_IN_TURN) {
        shapes.push((Shape { n_in_turn, ..plain }, format!(" --in-turn {n_in_turn}")));
    }
    if n_micro_batches.saturating_mul(d) <= MOST_FORWARDS {
        for in_flight in [d / 2, d, d + d / 2, 2 * d] {
            let shape = Shape { in_flight: Some(in_flight), ..plain };
            shapes.push((shape, format!(" --in-flight {in_flight}")));
        }
    }
    shapes
}

/// Larger groups cost room and gain little.
const MOST_IN_TURN: u32 = 8;
/// More forwards are not listed for one parameter after another.
const MOST_FORWARDS: u32 = 1 << 14;

fn is_split(timetable: &Timetable) -> bool {
    let mut ops = timetable.rows.iter().flatten().flat_map(Cell::ops);
    ops.any(|op| matches!(op.kind, Kind::BackwardInput | Kind::BackwardWeight))
}
