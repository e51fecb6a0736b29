//! The search for orders: never worse than its starts, close to the bound, and reproducible.

use std::convert::Infallible;
use std::time::Duration;

use chimera_schedule::analyze::{peak_kept, simulate};
use chimera_schedule::costs::{StageCosts, UniformCosts};
use chimera_schedule::lower::{Hoist, Lowering, Recompute, lower, recompute};
use chimera_schedule::placement::Placement;
use chimera_schedule::search::{Allowed, Found, Search, search, shortest, starts};
use chimera_schedule::timetable::Timetable;
use proptest::prelude::*;

const WHOLE: Allowed =
    Allowed { split_backwards: false, halved_micro_batches: false, recompute: Recompute::None };
const SPLIT: Allowed = Allowed { split_backwards: true, ..WHOLE };

/// A search with as many orders as a test has time for; the clock never decides.
fn within(max_peak: f64, n_orders: u64) -> Search {
    Search {
        max_peak: Some(max_peak),
        n_orders,
        time_limit: Duration::from_secs(3600),
        ..Search::default()
    }
}

fn find(starts: Vec<Timetable>, costs: UniformCosts, how: &Search) -> Found {
    let priced = |t: Timetable| {
        let costs = costs.per_units(t.units_per_micro);
        (t, costs)
    };
    let starts: Vec<_> = starts.into_iter().map(priced).collect();
    search(&starts, how, |_| ()).expect("an order that fits")
}

fn proven(timetable: &Timetable, max_peak: f64, costs: &UniformCosts) -> f64 {
    let how = Lowering { max_peak: Some(max_peak), ..Lowering::default() };
    let program = lower(timetable, &how).unwrap_or_else(|refusal| panic!("{refusal}"));
    simulate(&program, &costs.per_units(timetable.units_per_micro)).makespan()
}

/// Direct concatenation takes 126, 1F1B 117, a simple list scheduler 110 at peak 12.
#[test]
fn mirrored_pipes_come_to_the_bound() {
    let costs = UniformCosts::new(1.0, 2.0, 0.0);
    let mirrored = || starts(&Placement::mirrored(8, 1), 32, WHOLE);
    for (max_peak, wanted) in [(16.0, 105.0), (12.0, 105.0), (10.0, 106.0), (8.0, 108.0)] {
        let found = find(mirrored(), costs, &within(max_peak, 3000));
        assert_eq!(found.progress.makespan, wanted, "{max_peak}");
        assert_eq!(found.progress.lower_bound, wanted, "{max_peak}");
        assert_eq!(proven(&found.timetable, max_peak, &costs), found.progress.makespan);
    }
}

/// 1F1B takes as long as GPipe, which comes first in the table.
#[test]
fn of_orders_as_short_the_one_that_holds_least_is_found() {
    let costs = UniformCosts::new(1.0, 2.0, 0.0);
    let found = find(starts(&Placement::line(8), 32, WHOLE), costs, &within(32.0, 100));
    assert_eq!((found.timetable.schedule.as_str(), found.progress.makespan), ("1f1b", 117.0));
}

/// Recomputed right before their backwards, both hold one micro-batch's saved activations; GPipe
/// keeps 32 inputs.
#[test]
fn of_orders_that_hold_as_much_the_one_that_keeps_least_is_found() {
    let costs = |_: &Timetable| Ok::<_, Infallible>(UniformCosts::new(1.0, 2.0, 0.0));
    let allowed = Allowed { recompute: Recompute::Full, ..WHOLE };
    for (max_peak, wanted) in [(1.0, 8.0), (32.0, 8.0)] {
        let how = within(max_peak, 100);
        let found = shortest(&Placement::line(8), 32, allowed, &how, &costs, &mut |_| ());
        let found = found.expect("no cost fails").expect("an order that fits");
        assert_eq!((found.timetable.schedule.as_str(), found.progress.makespan), ("1f1b", 149.0));
        let program = lower(&found.timetable, &Lowering::default()).expect("proven");
        assert_eq!((program.peak(), most(&peak_kept(&program))), (1.0, wanted));
    }
}

/// V-Min keeps least once its recomputations are hoisted, and is not among the four shortest
/// starts.
#[test]
fn passes_go_through_more_than_the_shortest_starts() {
    let costs = |t: &Timetable| {
        let stage = |(forward, backward)| {
            UniformCosts::new(forward, backward, 0.0).per_units(t.units_per_micro)
        };
        let times = [(0.5, 1.5), (1.5, 1.5), (1.0, 3.0), (1.5, 1.5)];
        Ok::<_, Infallible>(StageCosts::new(times.map(stage).to_vec()))
    };
    let allowed = Allowed { recompute: Recompute::Full, ..SPLIT };
    let found = shortest(&Placement::wave(2, 2), 5, allowed, &within(2.0, 60), &costs, &mut |_| ());
    let found = found.expect("no cost fails").expect("an order that fits");
    let program = lower(&found.timetable, &Lowering::default()).expect("proven");
    assert_eq!(most(&peak_kept(&program)), 1.5);
}

fn most(peaks: &[f64]) -> f64 {
    peaks.iter().copied().fold(0.0, f64::max)
}

/// Times are as small in seconds as they are large in minutes. Scaling by a power of two rounds
/// nothing, so the same order must be found.
#[test]
fn the_unit_of_time_changes_nothing() {
    let mirrored = || starts(&Placement::mirrored(8, 1), 32, WHOLE);
    for max_peak in [8.0, 9.0] {
        let in_unit = |unit| {
            find(mirrored(), UniformCosts::new(unit, 2.0 * unit, 0.0), &within(max_peak, 60))
        };
        let found = in_unit(1.0);
        for exponent in [-40, -20, 20] {
            let unit = 2f64.powi(exponent);
            let again = in_unit(unit);
            assert_eq!(again.timetable, found.timetable, "2^{exponent}");
            assert_eq!(again.progress.makespan, found.progress.makespan * unit);
            assert_eq!(again.progress.n_orders, found.progress.n_orders);
            assert_eq!(again.progress.is_optimal(), found.progress.is_optimal());
        }
    }
}

/// Backward halving is another set of ops, with another lower bound.
#[test]
fn halved_micro_batches_are_searched_too() {
    let costs = UniformCosts::new(1.0, 2.0, 0.0);
    let halved = Allowed { halved_micro_batches: true, ..WHOLE };
    let found = find(starts(&Placement::mirrored(8, 1), 32, halved), costs, &within(8.0, 2000));
    assert!(found.progress.makespan <= 102.0, "{:?}", found.progress);
}

/// On a V with split backwards: as short as ZB-V, and the memory of V-Half with fewer bubbles.
#[test]
fn a_v_comes_to_the_bound() {
    let costs = UniformCosts::new(1.0, 2.0, 0.0);
    for (max_peak, wanted) in [(4.0, 51.0), (3.0, 53.0), (2.0, 59.0)] {
        let found = find(starts(&Placement::wave(4, 2), 8, SPLIT), costs, &within(max_peak, 2000));
        assert!(found.progress.makespan <= wanted, "{max_peak}: {:?}", found.progress);
        assert!(found.progress.lower_bound >= 51.0, "{max_peak}: {:?}", found.progress);
    }
}

#[test]
fn the_same_search_finds_the_same() {
    let costs = UniformCosts::new(1.0, 1.6, 0.1);
    let once = |seed| {
        let how = Search { seed, ..within(6.0, 300) };
        find(starts(&Placement::mirrored(4, 2), 9, SPLIT), costs, &how)
    };
    assert_eq!(once(1), once(1));
    assert!(once(1).timetable != once(2).timetable);
}

#[test]
fn a_limit_that_nothing_keeps_to_finds_nothing() {
    let costs = UniformCosts::new(1.0, 2.0, 0.0);
    let all = starts(&Placement::line(3), 4, WHOLE).into_iter().map(|t| (t, costs));
    assert_eq!(search(&all.collect::<Vec<_>>(), &within(0.5, 100), |_| ()), None);
}

/// Only one start is tried, and no pass.
#[test]
fn a_search_without_time_ends_with_the_first_that_fits() {
    let how = Search { max_peak: Some(4.0), time_limit: Duration::ZERO, ..Search::default() };
    let costs = |_: &Timetable| Ok::<_, Infallible>(UniformCosts::new(1.0, 2.0, 0.0));
    let allowed = Allowed { recompute: Recompute::Full, ..SPLIT };
    let search = |allowed: Allowed| {
        let found = shortest(&Placement::line(4), 32, allowed, &how, &costs, &mut |_| ());
        found.expect("no cost fails").expect("an order that fits")
    };
    let found = search(allowed);
    assert_eq!((found.timetable.schedule.as_str(), found.progress.n_orders), ("gpipe", 0));
    assert_eq!(found.progress.lower_bound, 0.0);
    // GPipe holds all activations, and does not fit.
    let found = search(WHOLE);
    assert_eq!((found.timetable.schedule.as_str(), found.progress.n_orders), ("1f1b", 0));
}

/// The slow stage is the bound: it should never wait.
#[test]
fn a_slow_stage_is_kept_busy() {
    let costs = |s| UniformCosts::new(if s == 2 { 3.0 } else { 1.0 }, 2.0, 0.5);
    let line = starts(&Placement::line(4), 12, WHOLE).into_iter();
    let priced: Vec<_> = line.map(|t| (t, StageCosts::new((0..4).map(costs).collect()))).collect();
    let mut told = Vec::new();
    let found = search(&priced, &within(8.0, 3000), |p| told.push(*p)).expect("an order");
    // It starts after two forwards and messages, and ends before two backwards and messages.
    assert_eq!(found.progress.lower_bound, 3.0 + 12.0 * 5.0 + 5.0);
    assert_eq!(found.progress.makespan, found.progress.lower_bound);
    assert!(told.windows(2).all(|pair| pair[1].makespan <= pair[0].makespan));
}

fn placements() -> impl Strategy<Value = Placement> {
    prop_oneof![
        (1usize..=5).prop_map(Placement::line),
        (1usize..=3, 1usize..=4).prop_map(|(d, chunks)| Placement::wave(d, chunks)),
        (1usize..=3, 1usize..=3).prop_map(|(d, chunks)| Placement::interleaved(d, chunks)),
        (1usize..=2).prop_map(|half| Placement::mirrored(2 * half, 1)),
        Just(Placement::mirrored(4, 2)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// This holds for any costs of stages and pairs, with and without recomputation.
    #[test]
    fn never_worse_than_any_start_nor_better_than_the_bound(
        placement in placements(),
        n in 1u32..=9,
        allowed in allowed(),
        times in prop::collection::vec((1u32..=6, 1u32..=6), 12),
        pair in prop::sample::select(vec![None, Some(1.5)]),
        message in prop::sample::select(vec![0.0, 0.25]),
        cap in prop::sample::select(vec![1.0, 1.5, 2.0, 4.0]),
    ) {
        let max_peak = (cap * placement.n_workers() as f64).max(1.0);
        let how = within(max_peak, 60);
        let costs = |t: &Timetable| -> Result<StageCosts, Infallible> {
            let stage = |s: usize| {
                let (forward, backward) = times[s % times.len()];
                let (forward, backward) = (f64::from(forward) / 2.0, f64::from(backward) / 2.0);
                let costs = UniformCosts::new(forward, backward, message);
                UniformCosts { pair, ..costs }.per_units(t.units_per_micro)
            };
            Ok(StageCosts::new((0..t.placement.n_stages()).map(stage).collect()))
        };
        let found = shortest(&placement, n, allowed, &how, &costs, &mut |_| ());
        let found = found.expect("no cost fails").expect("an order that fits");
        let limited = Lowering { max_peak: Some(max_peak), ..Lowering::default() };
        let takes = |t: &Timetable| {
            let program = lower(t, &limited).ok()?;
            let makespan = simulate(&program, &costs(t).expect("costs")).makespan();
            Some((makespan, program.peak(), most(&peak_kept(&program))))
        };
        let (makespan, peak, kept) = takes(&found.timetable).expect("what was found is proven");
        prop_assert!((makespan - found.progress.makespan).abs() < 1e-9);
        prop_assert!(makespan >= found.progress.lower_bound - 1e-9);
        for start in starts(&placement, n, allowed) {
            let what = |_, _| allowed.recompute;
            let costs = costs(&start).expect("costs");
            for hoist in [Hoist::By(0), Hoist::Auto] {
                let Ok(start) = recompute(&start, what, hoist, &limited, &costs) else { continue };
                let Some((hand_made, holds, keeps)) = takes(&start) else { continue };
                prop_assert!(makespan <= hand_made + 1e-9, "{} takes {hand_made}", start.schedule);
                prop_assert!(
                    makespan < hand_made - 1e-9 || peak <= holds + 1e-5,
                    "{} holds {holds}, not {peak}", start.schedule
                );
                prop_assert!(
                    makespan < hand_made - 1e-9 || peak < holds - 1e-5 || kept <= keeps + 1e-5,
                    "{} keeps {keeps}, not {kept}", start.schedule
                );
            }
        }
    }
}

fn allowed() -> impl Strategy<Value = Allowed> {
    let recompute = prop::sample::select(vec![Recompute::None, Recompute::Full]);
    (any::<bool>(), any::<bool>(), recompute).prop_map(
        |(split_backwards, halved_micro_batches, recompute)| Allowed {
            split_backwards,
            halved_micro_batches,
            recompute,
        },
    )
}
