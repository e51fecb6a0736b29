//! `auto` across placements: never longer than any listed schedule with any passes, within all of
//! its limits, and at known figures.

use std::error::Error;
use std::time::Duration;

use chimera_schedule::analyze::simulate;
use chimera_schedule::costs::{GivenTimes, PerStage, StageCosts};
use chimera_schedule::lower::{Hoist, Lowering, Moves, Passes, Recompute, lower};
use chimera_schedule::op::Kind;
use chimera_schedule::request::{Request, Source};
use chimera_schedule::schedule::{SCHEDULES, Schedule, Shape};
use chimera_schedule::search::{Report, Search, Where};
use chimera_schedule::timetable::Timetable;
use chimera_schedule::update::Update;
use proptest::prelude::*;

fn found(shape: Shape, times: &GivenTimes, how: Search) -> (Timetable, Report) {
    let source = Source::Search(Where::Any, how);
    let request = Request { source, shape, passes: Passes::default() };
    let costs = |timetable: &Timetable| Ok::<_, Box<dyn Error>>(times.of_model(timetable)?);
    let ordered = request.timetable(&costs, &mut |_| ()).expect("an order that fits");
    (ordered.timetable, ordered.search.expect("a report"))
}

/// A search of `n_orders` orders that no clock ends.
fn within(max_peak: Option<f64>, n_orders: u64) -> Search {
    Search { max_peak, n_orders, time_limit: Duration::from_secs(3600), ..Search::default() }
}

fn takes(timetable: &Timetable, max_peak: Option<f64>, costs: &StageCosts) -> Option<f64> {
    let program = lower(timetable, &Lowering { max_peak, ..Lowering::default() }).ok()?;
    Some(simulate(&program, costs).makespan())
}

#[test]
fn figures_are_no_longer_than_those_of_plain_options() {
    for (depth, n, cap, most) in [(4, 8, None, 25.0), (8, 16, Some(4.0), 59.5)] {
        let (timetable, report) =
            found(Shape::new(depth, n), &GivenTimes::default(), within(cap, 400));
        let costs = GivenTimes::default().of_model(&timetable).expect("costs");
        let makespan = takes(&timetable, cap, &costs).expect("proven");
        assert!(makespan <= most, "{report}");
        assert_eq!(makespan, report.progress.makespan);
    }
}

/// Four pipes take 24, two at least 25; without a limit V-Min's memory would not be needed.
#[test]
fn every_limit_has_its_price() {
    let price = |cap, depth, n| {
        let shape = Shape::new(depth, n);
        let (_, report) = found(shape, &GivenTimes::default(), within(cap, 400));
        let across = report.across.clone().expect("placements");
        let makespans: Vec<_> = across.limits.iter().map(|limit| limit.makespan).collect();
        (makespans, report.to_string())
    };
    let (makespans, text) = price(None, 4, 8);
    assert_eq!(makespans[0], Some(24.0), "{text}");
    let line =
        "\nlimits: weight-copies 2 (with 4: 24), max-chunks 2 (with 4: 24.75), no memory-cap";
    assert!(text.ends_with(line), "{text}");
    let (makespans, text) = price(Some(4.0), 8, 16);
    assert!(makespans[2].is_some_and(|makespan| makespan <= 51.5), "{text}");
    assert!(text.contains(", memory-cap 4 of activations only (without: 51"), "{text}");
}

#[test]
fn a_search_keeps_to_copies_and_chunks() {
    for (weight_copies, max_chunks) in [(1, 1), (1, 2), (2, 1), (4, 4)] {
        let how = Search { weight_copies, max_chunks, ..within(None, 20) };
        let (timetable, _) = found(Shape::new(4, 8), &GivenTimes::default(), how);
        let placement = &timetable.placement;
        assert!(placement.n_pipes() <= weight_copies, "{weight_copies}, {max_chunks}");
        assert!(placement.n_stages() <= 4 * max_chunks, "{weight_copies}, {max_chunks}");
    }
}

#[test]
fn the_same_search_chooses_the_same() {
    let once =
        || found(Shape::new(3, 7), &uneven(&[2, 1, 3], 2.0, 0.5, 0.0), within(Some(2.0), 60));
    assert_eq!(once(), once());
}

fn uneven(forwards: &[u32], backward: f64, message: f64, transfer: f64) -> GivenTimes {
    let forward: Vec<f64> = forwards.iter().map(|f| f64::from(*f) / 2.0).collect();
    let backwards = forward.iter().map(|f| f * backward).collect();
    GivenTimes {
        forward: Some(PerStage(forward)),
        backward: Some(PerStage(backwards)),
        message: Some(PerStage(vec![message])),
        transfer: Some(PerStage(vec![transfer])),
        ..GivenTimes::default()
    }
}

/// Every listed schedule of a shape that is within the usual limits.
fn listed(shape: Shape) -> Vec<Timetable> {
    let plain = Shape { n_waves: 1, ..shape };
    let of = |schedule: &&dyn Schedule| {
        let others = schedule.parameters(plain).into_iter().map(|(shape, _)| shape);
        let made = std::iter::once(plain).chain(others).map(|shape| schedule.timetable(&shape));
        made.filter_map(Result::ok).collect::<Vec<_>>()
    };
    let all = SCHEDULES.iter().flat_map(of);
    all.filter(|t| t.update == Update::Flush && !t.is_sliced).collect()
}

fn all_passes() -> Vec<Passes> {
    let mut all = Vec::new();
    for split_backward in [false, true] {
        for recompute in [Recompute::None, Recompute::Full] {
            for hoist in [Hoist::By(0), Hoist::Auto] {
                for moves in [Moves::None, Moves::Offload, Moves::Bpipe] {
                    all.push(Passes { recompute, hoist, split_backward, moves, free_border: None });
                }
            }
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Recomputation and moves are passes only under a memory limit and where they take time.
    #[test]
    fn never_longer_than_a_listed_schedule_with_any_passes(
        depth in 1usize..=5,
        n in 1u32..=9,
        forwards in prop::collection::vec(1u32..=4, 5),
        backward in prop::sample::select(vec![1.0, 2.0, 3.0]),
        message in prop::sample::select(vec![0.0, 0.5]),
        transfer in prop::sample::select(vec![0.0, 0.25, 2.0]),
        cap in prop::sample::select(vec![None, Some(0.5), Some(1.0)]),
    ) {
        let max_peak = cap.map(|cap| f64::max(cap * depth as f64, 1.0));
        let times = uneven(&forwards[..depth], backward, message, transfer);
        let shape = Shape::new(depth, n);
        let (timetable, report) = found(shape, &times, within(max_peak, 40));
        let costs = times.of_model(&timetable).expect("costs");
        let makespan = takes(&timetable, max_peak, &costs).expect("proven under the limit");
        prop_assert!((makespan - report.progress.makespan).abs() < 1e-9);
        prop_assert!(makespan >= report.progress.lower_bound - 1e-9, "{report}");
        prop_assert!(timetable.placement.n_pipes() <= 2);
        prop_assert!(timetable.placement.n_stages() <= 2 * depth);
        for schedule in listed(shape) {
            let costs = times.of_model(&schedule).expect("costs");
            for passes in all_passes() {
                let saves = passes.recompute != Recompute::None || passes.moves != Moves::None;
                let is_free = passes.moves != Moves::None && transfer == 0.0;
                if is_free || saves && max_peak.is_none() {
                    continue;
                }
                let how = Lowering { max_peak, ..Lowering::default() };
                let passed = passes.apply(schedule.clone(), &how, &costs);
                let Some(other) = passed.ok().and_then(|t| takes(&t, max_peak, &costs)) else {
                    continue;
                };
                prop_assert!(
                    makespan <= other + 1e-9,
                    "{} with {passes:?} takes {other}: {report}", schedule.schedule
                );
            }
        }
        let has_moves = timetable.has(Kind::Offload);
        prop_assert!(!has_moves || max_peak.is_some() && transfer > 0.0);
    }
}
