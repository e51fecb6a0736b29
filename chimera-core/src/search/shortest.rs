//! The whole way from a placement to the shortest order found on it.

use std::time::Instant;

use super::improve::{Found, Progress, Search, search};
use super::starts::{Allowed, starts};
use crate::analyze::Costs;
use crate::lower::{Hoist, Lowering, Recompute, recompute, split_backward};
use crate::op::{Cell, Kind, Op, Span};
use crate::placement::Placement;
use crate::timetable::Timetable;

/// The shortest order found of the ops of a step on `placement`: never longer than any schedule of the
/// table on it that keeps to the memory limit. `costs` says what the stages of a timetable cost.
///
/// Where there are many micro-batches, and an eighth of the orders does not end at the bound, half of them
/// go into half as many micro-batches: their best order twice in a row is a better start than what single
/// moves find in the whole.
///
/// # Errors
/// Those of `costs`. `Ok(None)` if not even one order keeps to the limit.
pub fn shortest<C: Costs, E>(
    placement: &Placement,
    n_micro_batches: u32,
    allowed: Allowed,
    how: &Search,
    costs: &impl Fn(&Timetable) -> Result<C, E>,
    observe: &mut dyn FnMut(&Progress),
) -> Result<Option<Found>, E> {
    let began = Instant::now();
    let left = || how.time_limit.saturating_sub(began.elapsed());
    let mut from = Vec::new();
    for timetable in starts(placement, n_micro_batches, allowed) {
        for timetable in passed(timetable, allowed, how, costs)? {
            let cost = costs(&timetable)?;
            from.push((timetable, cost));
        }
    }
    let is_long = n_micro_batches as usize >= 4 * placement.n_workers();
    if !n_micro_batches.is_multiple_of(2) || !is_long {
        return Ok(search(&from, &Search { time_limit: left(), ..*how }, observe));
    }
    let part = |of: u32| Search {
        n_orders: how.n_orders / u64::from(of),
        time_limit: left().min(how.time_limit / of),
        ..*how
    };
    let Some(first) = search(&from, &part(8), &mut *observe) else { return Ok(None) };
    if first.progress.is_optimal() || left().is_zero() {
        return Ok(Some(first));
    }
    let mut tried = first.progress.n_orders;
    let half = shortest(placement, n_micro_batches / 2, allowed, &part(2), costs, &mut |_| ())?;
    from.clear();
    if let Some(half) = half {
        tried += half.progress.n_orders;
        let whole = twice(&half.timetable);
        let cost = costs(&whole)?;
        from.push((whole, cost));
    }
    let cost = costs(&first.timetable)?;
    from.push((first.timetable, cost));
    let rest = Search { n_orders: how.n_orders.saturating_sub(tried), time_limit: left(), ..*how };
    // The bound of all ops that are allowed, not of those alone that are still ordered.
    let lower_bound = first.progress.lower_bound;
    let all = |progress: &Progress| Progress {
        n_orders: tried + progress.n_orders,
        lower_bound,
        ..*progress
    };
    let found = search(&from, &rest, |progress| observe(&all(progress)));
    Ok(found.map(|found| Found { progress: all(&found.progress), ..found }))
}

/// What the allowed passes make of a start, named with the options that say so. One in no order yet is
/// refused by those that run it, and needs them not.
fn passed<C: Costs, E>(
    timetable: Timetable,
    allowed: Allowed,
    how: &Search,
    costs: &impl Fn(&Timetable) -> Result<C, E>,
) -> Result<Vec<Timetable>, E> {
    let lowering = Lowering { max_peak: how.max_peak, ..Lowering::default() };
    let cost = costs(&timetable)?;
    let named = |passed: Timetable, option: &str| {
        let schedule = format!("{}{option}", passed.schedule);
        Timetable { schedule, ..passed }
    };
    let hoisted = |(hoist, option)| {
        let all = recompute(&timetable, |_, _| allowed.recompute, hoist, &lowering, &cost);
        all.map(|all| named(all, option))
    };
    let mut passed: Vec<Timetable> = match allowed.recompute {
        Recompute::None => vec![timetable],
        _ => [(Hoist::By(0), ""), (Hoist::Auto, " --hoist auto")]
            .into_iter()
            .flat_map(hoisted)
            .collect(),
    };
    if allowed.split_backwards {
        let split = |timetable: &Timetable| {
            let halves = split_backward(timetable, &lowering, &cost).ok()?;
            Some(named(halves, " --split-backward"))
        };
        let split: Vec<_> =
            passed.iter().filter(|t| t.has(Kind::Backward)).filter_map(split).collect();
        passed.extend(split);
    }
    Ok(passed)
}

/// The micro-batches of a timetable, and as many more behind them in the same order.
fn twice(timetable: &Timetable) -> Timetable {
    let later = |op: Op| {
        let start = op.span.start + timetable.n_units();
        Op { span: Span { start, ..op.span }, ..op }
    };
    let repeated = |row: &Vec<Cell>| {
        row.iter().copied().chain(row.iter().map(|cell| cell.map(later))).collect()
    };
    Timetable {
        schedule: "auto".into(),
        n_micro_batches: 2 * timetable.n_micro_batches,
        rows: timetable.rows.iter().map(repeated).collect(),
        ..timetable.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use super::*;
    use crate::analyze::{UniformCosts, simulate};
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
}
