//! Where a search begins: what the table of schedules has on a placement.

use super::graph::unordered;
use crate::op::{Cell, Kind};
use crate::placement::Placement;
use crate::schedule::{SCHEDULES, Scaling, Shape};
use crate::timetable::Timetable;
use crate::update::Update;

/// What ops an order may have beside forwards and backwards of whole micro-batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allowed {
    /// Input and weight halves of backwards.
    pub split_backwards: bool,
    /// Backwards of half a micro-batch, on smaller kernels.
    pub halved_micro_batches: bool,
}

/// Every timetable of allowed ops that the table of schedules has on `placement`, and one in no order,
/// for a search to choose from. The latter has split backwards if they are allowed.
pub fn starts(placement: &Placement, n_micro_batches: u32, allowed: Allowed) -> Vec<Timetable> {
    let (d, n_stages) = (placement.n_workers(), placement.n_stages());
    let n_chunks = n_stages.div_ceil(d.max(1));
    let shape = Shape {
        n_pipes: placement.n_pipes(),
        n_chunks,
        n_waves: n_chunks / 2,
        ..Shape::new(d, n_micro_batches)
    };
    let mut found: Vec<Timetable> = Vec::new();
    for schedule in SCHEDULES {
        for (_, scaling) in Scaling::ALL {
            let timetable = schedule.timetable(&Shape { scaling, ..shape });
            found.extend(timetable.ok().filter(|t| {
                t.placement == *placement
                    && t.update == Update::Flush
                    && (allowed.split_backwards || !is_split(t))
                    && (allowed.halved_micro_batches || t.units_per_micro == 1)
                    && !found.contains(t)
            }));
        }
    }
    found.push(unordered(placement.clone(), n_micro_batches, allowed.split_backwards));
    found
}

fn is_split(timetable: &Timetable) -> bool {
    let mut ops = timetable.rows.iter().flatten().flat_map(Cell::ops);
    ops.any(|op| matches!(op.kind, Kind::BackwardInput | Kind::BackwardWeight))
}
