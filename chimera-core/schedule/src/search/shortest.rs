//! The whole search for the shortest order on a placement.

use std::time::Duration;

use super::improve::{Found, Progress, Search, SearchState};
use super::starts::{Allowed, each};
use crate::analyze::Refusal;
use crate::costs::Costs;
use crate::ir::op::Kind;
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;
use crate::lower::{Hoist, Lowering, Recompute, recompute, split_backward};

/// The shortest order found for the ops of a step on `placement`. It is never longer than any
/// schedule of the table on this placement that keeps to the memory limit and that there is time to
/// look at. `costs` returns the costs of a timetable's stages.
///
/// With many micro-batches, if an eighth of the orders does not reach the bound, half of them are
/// spent on half as many micro-batches: their best order twice in a row is a better start than
/// single moves find in the whole step. If they find nothing, the search continues with the rest.
///
/// # Errors
/// Errors of `costs`. `Ok(None)` if no order keeps to the limit.
pub fn shortest<C: Costs, E>(
    placement: &Placement,
    n_micro_batches: u32,
    allowed: Allowed,
    how: &Search,
    costs: &impl Fn(&Timetable) -> Result<C, E>,
    observe: &mut dyn FnMut(&Progress),
) -> Result<Option<Found>, E> {
    let began = how.clock.now();
    let left = || how.time_limit.saturating_sub(how.clock.since(began));
    let mut state = SearchState::new(how);
    let mut from =
        add_starts(&mut state, placement, n_micro_batches, allowed, (how, began), costs, observe)?;
    let is_long = n_micro_batches as usize >= 4 * placement.n_workers();
    if !n_micro_batches.is_multiple_of(2) || !is_long {
        return Ok(state.run(how.n_orders, how.time_limit, observe));
    }
    let part = |of: u32| Search {
        n_orders: how.n_orders / u64::from(of),
        time_limit: left().min(how.time_limit / of),
        ..*how
    };
    let eighth = part(8);
    // The bound of all allowed ops, not only of those that are still ordered.
    let mut lower_bound = f64::INFINITY;
    let first =
        state.run(eighth.n_orders, how.clock.since(began) + eighth.time_limit, &mut |progress| {
            lower_bound = progress.lower_bound;
            observe(progress);
        });
    if first.as_ref().is_some_and(|first| first.progress.is_optimal()) || left().is_zero() {
        return Ok(first);
    }
    // Results for half of the micro-batches do not hold for all, so `observe` gets the earlier
    // results.
    let known = first.as_ref().map(|first| first.progress);
    let mut observe_half = |_: &Progress| known.iter().for_each(&mut *observe);
    let half =
        shortest(placement, n_micro_batches / 2, allowed, &part(2), costs, &mut observe_half)?;
    let mut tried = eighth.n_orders;
    let mut seed = how.seed;
    match first {
        Some(first) => {
            tried = first.progress.n_orders;
            let cost = costs(&first.timetable)?;
            from = vec![(first.timetable, cost)];
        }
        None => seed = seed.wrapping_add(1), // the same draws would find nothing again
    }
    if let Some(half) = half {
        tried += half.progress.n_orders;
        let whole = Timetable { schedule: "auto".into(), ..half.timetable.repeated(2) };
        let cost = costs(&whole)?;
        from.insert(0, (whole, cost));
    }
    let n_orders = how.n_orders.saturating_sub(tried);
    let rest = Search { n_orders, time_limit: left(), seed, ..*how };
    let all = |progress: &Progress| Progress {
        n_orders: tried + progress.n_orders,
        lower_bound,
        ..*progress
    };
    let mut state = SearchState::new(&rest); // it may be late, but starts from the earlier results
    for (timetable, cost) in &from {
        state.start(timetable, cost);
    }
    let found = state.run(n_orders, rest.time_limit, &mut |progress| observe(&all(progress)));
    Ok(found.map(|found| Found { progress: all(&found.progress), ..found }))
}

/// Gives a search its starts: every known order on the placement, then the best of them after
/// passes. Returns those that the search began from.
fn add_starts<C: Costs, E>(
    state: &mut SearchState<'_>,
    placement: &Placement,
    n_micro_batches: u32,
    allowed: Allowed,
    (how, began): (&Search, Duration),
    costs: &impl Fn(&Timetable) -> Result<C, E>,
    observe: &mut dyn FnMut(&Progress),
) -> Result<Vec<(Timetable, C)>, E> {
    let left = || how.time_limit.saturating_sub(how.clock.since(began));
    let mut from = Vec::<(Timetable, C)>::new();
    let mut fitting = Vec::new();
    for timetable in each(placement, n_micro_batches, allowed) {
        if state.has_found() && left().is_zero() {
            state.leave_out();
            break;
        }
        let cost = costs(&timetable)?;
        let kept = recomputed(&timetable, allowed, how, Hoist::By(0), &cost);
        let Ok(start) = kept else { continue };
        if from.iter().any(|(other, _)| other.rows == start.rows) {
            continue;
        }
        if let Some(objective) = state.start(&start, &cost) {
            fitting.push((objective, timetable));
        }
        observe(&state.progress);
        from.push((start, cost));
    }
    // A pass runs a start many times, so only the best are passed, and start in the first half of
    // the time.
    fitting.sort_by(|(a, _), (b, _)| {
        let held = a.peak.total_cmp(&b.peak).then(a.kept.total_cmp(&b.kept));
        a.makespan.total_cmp(&b.makespan).then(held)
    });
    let has_time = || left() > how.time_limit / 2;
    for (_, start) in fitting.into_iter().take(N_PASSED) {
        let cost = costs(&start)?;
        for timetable in passed(start, allowed, how, &cost, &has_time) {
            let cost = costs(&timetable)?;
            state.start(&timetable, &cost);
            observe(&state.progress);
            from.push((timetable, cost));
        }
    }
    Ok(from)
}

/// Number of best starts that passes are tried on: all schedules of one placement, or nearly all.
const N_PASSED: usize = 8;

/// Applies other passes to a start, while there is time. Returns the timetables with their options
/// as names.
fn passed(
    start: Timetable,
    allowed: Allowed,
    how: &Search,
    costs: &impl Costs,
    has_time: &impl Fn() -> bool,
) -> Vec<Timetable> {
    let named = |passed: Timetable, option: &str| {
        let schedule = format!("{}{option}", passed.schedule);
        Timetable { schedule, ..passed }
    };
    let hoisted = (allowed.recompute != Recompute::None && has_time())
        .then(|| recomputed(&start, allowed, how, Hoist::Auto, costs).ok())
        .flatten()
        .map(|hoisted| named(hoisted, " --hoist auto"));
    let mut whole: Vec<Timetable> = Vec::new();
    if allowed.split_backwards && start.has(Kind::Backward) {
        whole.extend(recomputed(&start, allowed, how, Hoist::By(0), costs).ok());
        whole.extend(hoisted.clone());
    }
    let split = |whole: Timetable| {
        let halves = has_time().then(|| split_backward(&whole, &lowering(how), costs));
        halves?.ok().map(|halves| named(halves, " --split-backward"))
    };
    hoisted.into_iter().chain(whole.into_iter().filter_map(split)).collect()
}

/// A start that keeps only the activations that `allowed` permits.
fn recomputed(
    start: &Timetable,
    allowed: Allowed,
    how: &Search,
    hoist: Hoist,
    costs: &impl Costs,
) -> Result<Timetable, Refusal> {
    recompute(start, |_, _| allowed.recompute, hoist, &lowering(how), costs)
}

fn lowering(how: &Search) -> Lowering {
    Lowering { max_peak: how.max_peak, ..Lowering::default() }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use super::*;
    use crate::analyze::simulate;
    use crate::costs::UniformCosts;
    use crate::lower::lower;

    #[test]
    fn many_micro_batches_are_found_from_half_as_many() {
        let costs = |_: &Timetable| Ok::<_, Infallible>(UniformCosts::new(1.0, 2.0, 0.0));
        let how = Search {
            max_peak: Some(8.0),
            n_orders: 8_000,
            time_limit: Duration::from_secs(3600),
            ..Search::default()
        };
        let placement = Placement::mirrored(8, 2);
        let mut last = f64::INFINITY;
        let mut observe = |progress: &Progress| last = progress.makespan;
        let found = shortest(&placement, 32, Allowed::default(), &how, &costs, &mut observe);
        let found = found.expect("no cost fails").expect("an order");
        assert_eq!(found.progress.makespan, 100.0);
        assert_eq!(found.progress.lower_bound, 100.0);
        assert_eq!(last, 100.0);
        let limited = Lowering { max_peak: how.max_peak, ..Lowering::default() };
        let program = lower(&found.timetable, &limited).expect("proven");
        assert_eq!(simulate(&program, &UniformCosts::new(1.0, 2.0, 0.0)).makespan(), 100.0);
    }

    #[test]
    fn a_first_part_that_finds_nothing_does_not_end_the_search() {
        let costs = |_: &Timetable| Ok::<_, Infallible>(UniformCosts::new(1.0, 2.0, 0.0));
        // Nothing ever fits.
        let how = Search { max_peak: Some(0.5), n_orders: 80, ..Search::default() };
        let mut n_tried = Vec::new();
        let mut observe = |progress: &Progress| n_tried.push(progress.n_orders);
        let placement = Placement::mirrored(2, 1);
        let found = shortest(&placement, 8, Allowed::default(), &how, &costs, &mut observe);
        assert_eq!(found, Ok(None));
        assert!(n_tried.iter().any(|n| *n >= 10), "{n_tried:?}");
    }
}
