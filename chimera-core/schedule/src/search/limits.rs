//! The search within limits, and the cost of each limit.

use super::across::across;
use super::improve::{Found, Progress, Search};
use super::report::{Across, Limit, MEMORY_CAP};
use super::space::Space;
use crate::costs::{Costs, is_shorter};
use crate::ir::timetable::Timetable;
use crate::schedule::Shape;

/// Parts of the orders and of the time that go into one limit.
const PART: u32 = 20;

/// The shortest order found in a space. Then every limit is relaxed in turn, to see by a brief
/// search what it costs.
///
/// # Errors
/// Errors of `costs` on all placements.
pub(super) fn within_limits<C: Costs, E>(
    space: &Space,
    shape: &Shape,
    how: &Search,
    costs: &impl Fn(&Timetable) -> Result<C, E>,
    observe: &mut dyn FnMut(&Progress),
) -> Result<(Option<Found>, Across), E> {
    let n = shape.n_micro_batches;
    let main = Search { time_limit: how.time_limit - how.time_limit / PART * 3, ..*how };
    let found = across(space, n, &main, costs, observe)?;
    let placement = found.as_ref().and_then(|found| space.name(&found.timetable.placement));
    let makespan = found.as_ref().map_or(f64::INFINITY, |found| found.progress.makespan);
    let brief = Search {
        n_orders: how.n_orders / u64::from(PART),
        time_limit: how.time_limit / PART,
        ..*how
    };
    let shorter = |space: &Space, how: &Search| {
        let found = across(space, n, how, costs, &mut |_| ()).ok().flatten()?;
        Some(found.progress.makespan).filter(|other| is_shorter(*other, makespan))
    };
    let more = |weight_copies: usize, max_chunks: usize| {
        let mut more = Space::within(shape.depth, weight_copies, max_chunks);
        more.placements.retain(|other| !space.placements.contains(other));
        let more = Space { placements: more.placements, ..space.clone() };
        shorter(&more, &brief)
    };
    let Search { weight_copies, max_chunks, max_peak, .. } = *how;
    let (copies, chunks) = (weight_copies.max(1) * 2, max_chunks.max(1) * 2);
    let free = Search { max_peak: None, ..brief };
    let limits = vec![
        Limit {
            name: "weight-copies",
            value: Some(weight_copies as f64),
            relaxed: Some(copies as f64),
            makespan: more(copies, max_chunks),
        },
        Limit {
            name: "max-chunks",
            value: Some(max_chunks as f64),
            relaxed: Some(chunks as f64),
            makespan: more(weight_copies, chunks),
        },
        Limit {
            name: MEMORY_CAP,
            value: max_peak,
            relaxed: None,
            makespan: max_peak.and_then(|_| shorter(space, &free)),
        },
    ];
    let placement = placement.unwrap_or_default().to_string();
    Ok((found, Across { placement, n_placements: space.placements.len(), limits }))
}
