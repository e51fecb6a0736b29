//! The starts of a search: the timetables of the table of schedules on a placement.

use crate::ir::op::Kind;
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;
use crate::ir::update::Update;
use crate::lower::Recompute;
use crate::order::unordered;
use crate::schedule::{SCHEDULES, Schedule, Shape};

/// The ops that an order may have in addition to forwards and backwards of whole micro-batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allowed {
    /// Input and weight halves of backwards.
    pub split_backwards: bool,
    /// Backwards of half a micro-batch, on smaller kernels.
    pub halved_micro_batches: bool,
    /// The activations that forwards keep; all others are recomputed at the best places.
    pub recompute: Recompute,
}

/// The starts of a search: every timetable of allowed ops that the table of schedules has on
/// `placement`, for all parameters and named with them, and one without an order. The latter has
/// split backwards if they are allowed. Nothing is recomputed yet.
pub fn starts(placement: &Placement, n_micro_batches: u32, allowed: Allowed) -> Vec<Timetable> {
    let mut found: Vec<Timetable> = Vec::new();
    for timetable in each(placement, n_micro_batches, allowed) {
        if found.iter().all(|other| other.rows != timetable.rows) {
            found.push(timetable);
        }
    }
    found
}

/// Like [`starts`], but each is made when it is needed, and some are made twice.
pub(super) fn each(
    placement: &Placement,
    n_micro_batches: u32,
    allowed: Allowed,
) -> impl Iterator<Item = Timetable> {
    let is_allowed = move |timetable: &Timetable| {
        timetable.placement == *placement
            && timetable.update == Update::Flush
            && (allowed.split_backwards || !is_split(timetable))
            && !timetable.is_sliced
            && (allowed.halved_micro_batches || timetable.units_per_micro == 1)
    };
    let known = SCHEDULES.iter().filter(move |s| may_have(**s, placement, n_micro_batches));
    let of_table = known.flat_map(move |schedule| {
        let plain = shape(placement, n_micro_batches);
        let named = |(shape, options)| (shape, format!("{} {options}", schedule.name()));
        let others = schedule.parameters(plain).into_iter().map(named);
        let shapes = std::iter::once((plain, schedule.name().to_string())).chain(others);
        shapes.filter_map(move |(shape, name)| {
            let timetable = schedule.timetable(&shape).ok().filter(is_allowed)?;
            Some(Timetable { schedule: name, ..timetable })
        })
    });
    let last = move || unordered(placement.clone(), n_micro_batches, allowed.split_backwards);
    of_table.chain(std::iter::once_with(last))
}

/// Returns true if a schedule can have the placement, tested with the smallest number of
/// micro-batches that any schedule needs.
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

fn is_split(timetable: &Timetable) -> bool {
    timetable.has(Kind::BackwardInput) || timetable.has(Kind::BackwardWeight)
}
