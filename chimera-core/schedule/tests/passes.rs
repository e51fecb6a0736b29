//! Laws of split backwards and recomputation, for every schedule.

#[path = "passes/recomputation.rs"]
mod recomputation;

use chimera_schedule::analyze::{Reason, Timeline, peak_kept, simulate};
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::interchange::from_json;
use chimera_schedule::lower::{
    Hoist, Lowering, Passes, Recompute, lower, recompute, split_backward,
};
use chimera_schedule::op::{Cell, Kind, Op};
use chimera_schedule::program::Program;
use chimera_schedule::render::text;
use chimera_schedule::schedule::{SCHEDULES, Scaling, Shape, find};
use chimera_schedule::timetable::Timetable;
use proptest::prelude::*;
use serde_json::json;

const PLAIN: Costs = Costs { backward: 2.0, message: 0.0 };

#[derive(Clone, Copy, Debug)]
struct Costs {
    backward: f64,
    message: f64,
}

impl Costs {
    fn of(self, timetable: &Timetable) -> UniformCosts {
        let Costs { backward, message } = self;
        UniformCosts::new(1.0, backward, message).per_units(timetable.units_per_micro)
    }
}

fn timetable(schedule: &str, shape: &Shape) -> Timetable {
    find(schedule).expect("known").timetable(shape).unwrap_or_else(|unfit| panic!("{unfit}"))
}

fn how(max_peak: Option<f64>) -> Lowering {
    Lowering { max_peak, ..Lowering::default() }
}

fn run(timetable: &Timetable, how: &Lowering, costs: Costs) -> (Program, Timeline) {
    let program = lower(timetable, how).unwrap_or_else(|refusal| panic!("{refusal}"));
    let timeline = simulate(&program, &costs.of(timetable));
    (program, timeline)
}

fn makespan(timetable: &Timetable, how: &Lowering, costs: Costs) -> f64 {
    run(timetable, how, costs).1.makespan()
}

fn peak(timetable: &Timetable) -> f64 {
    run(timetable, &Lowering::default(), PLAIN).0.peak()
}

fn split(timetable: &Timetable, how: &Lowering, costs: Costs) -> Timetable {
    split_backward(timetable, how, &costs.of(timetable)).expect("sound")
}

fn recomputed(timetable: &Timetable, hoist: Hoist, max_peak: Option<f64>) -> Timetable {
    let how = how(max_peak);
    let costs = PLAIN.of(timetable);
    recompute(timetable, |_, _| Recompute::Full, hoist, &how, &costs).expect("sound")
}

fn ops(row: &[Cell]) -> Vec<Op> {
    row.iter().flat_map(Cell::ops).collect()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

/// Every schedule of the table, at every shape that it supports.
fn timetables() -> impl Strategy<Value = Timetable> {
    let schedule = prop::sample::select(SCHEDULES.iter().map(|s| s.name()).collect::<Vec<_>>());
    let scaling = prop::sample::select(Scaling::ALL.map(|(_, scaling)| scaling).to_vec());
    (schedule, 1usize..=8, 1u32..=20, 1usize..=4, 1usize..=3, scaling).prop_filter_map(
        "fits",
        |(schedule, depth, n, f, n_chunks, scaling)| {
            let shape = Shape { n_pipes: 2 * f, n_chunks, scaling, ..Shape::new(depth, n) };
            find(schedule).expect("known").timetable(&shape).ok()
        },
    )
}

/// Timetables whose passes of a micro-batch read the same weights.
fn recomputable() -> impl Strategy<Value = Timetable> {
    let reads_one = |t: &Timetable| t.update.row().reads_one_version();
    timetables().prop_filter("recomputes", reads_one)
}

fn costs() -> impl Strategy<Value = Costs> {
    let backward = prop::sample::select(vec![0.7, 1.0, 1.6, 2.0, 3.0]);
    let message = prop::sample::select(vec![0.0, 0.25, 1.0]);
    (backward, message).prop_map(|(backward, message)| Costs { backward, message })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn splitting_keeps_order_and_work_and_never_takes_longer(t in timetables(), costs in costs()) {
        let plain = Lowering::default();
        let halves = split(&t, &plain, costs);
        let (before, after) = (run(&t, &plain, costs).1, run(&halves, &plain, costs).1);
        prop_assert!(after.makespan() <= before.makespan() + 1e-6);
        for (w, (whole, row)) in t.rows.iter().zip(&halves.rows).enumerate() {
            prop_assert!(close(before.busy()[w], after.busy()[w]));
            // Without the added weight halves, the row is as before.
            let input_half = |op: Op| match op.kind {
                Kind::Backward => Op { kind: Kind::BackwardInput, ..op },
                _ => op,
            };
            let had = |op: &Op| ops(whole).contains(op);
            let kept = ops(row).into_iter().filter(|op| op.kind != Kind::BackwardWeight || had(op));
            prop_assert!(kept.eq(ops(whole).into_iter().map(input_half)));
            prop_assert!(ops(row).iter().all(|op| op.kind != Kind::Backward));
        }
        prop_assert_eq!(&split(&halves, &plain, costs), &halves);
    }

    #[test]
    fn splitting_holds_no_more_than_a_limit_that_can_be_kept(t in timetables(), more in 0u32..4) {
        let limit = peak(&t) + f64::from(more);
        let how = Lowering { max_peak: Some(limit), ..Lowering::default() };
        let halves = split(&t, &how, PLAIN);
        prop_assert!(peak(&halves) <= limit + 1e-6);
        prop_assert!(makespan(&halves, &how, PLAIN) <= makespan(&t, &how, PLAIN) + 1e-6);
    }

    #[test]
    fn recomputing_adds_one_op_to_each_backward(t in recomputable(), cells in 0usize..10) {
        for hoist in [Hoist::OnDemand, Hoist::By(cells), Hoist::Auto] {
            let again = recomputed(&t, hoist, None);
            for (whole, row) in t.rows.iter().zip(&again.rows) {
                let of = |kind| ops(row).into_iter().filter(move |op| op.kind == kind);
                let backward = |op: &Op| matches!(op.kind, Kind::Backward | Kind::BackwardInput);
                let mut wanted: Vec<_> = ops(whole).into_iter().filter(backward).map(|op| op.span).collect();
                let mut found: Vec<_> = of(Kind::Recompute).map(|op| op.span).collect();
                wanted.sort();
                found.sort();
                prop_assert_eq!(found, wanted);
                let others: Vec<_> = ops(row).into_iter().filter(|op| op.kind != Kind::Recompute).collect();
                prop_assert_eq!(others, ops(whole));
            }
            prop_assert_eq!(&recomputed(&again, hoist, None), &again);
        }
    }

    /// While a worker waits for a gradient it may as well recompute.
    #[test]
    fn recomputing_early_is_never_slower(t in recomputable(), limit in 1u32..8) {
        let span = |hoist, limit: Option<f64>| {
            makespan(&recomputed(&t, hoist, limit), &how(None), PLAIN)
        };
        let [on_demand, early] = [Hoist::OnDemand, Hoist::By(0)].map(|hoist| span(hoist, None));
        let (limited, auto) = (span(Hoist::Auto, Some(f64::from(limit))), span(Hoist::Auto, None));
        prop_assert!(early <= on_demand + 1e-6);
        prop_assert!(limited <= early + 1e-6 && auto <= early + 1e-6);
    }

    #[test]
    fn recomputing_stays_below_a_limit(t in recomputable(), cells in 0usize..12, limit in 1u32..8) {
        let limit = f64::from(limit).max(peak(&recomputed(&t, Hoist::By(0), None)));
        for hoist in [Hoist::By(cells), Hoist::Auto] {
            let again = recomputed(&t, hoist, Some(limit));
            prop_assert!(peak(&again) <= limit + 1e-6);
            let halves = split(&again, &how(Some(limit)), PLAIN);
            prop_assert!(peak(&halves) <= limit + 1e-6);
        }
    }
}

proptest! {
    #[test]
    fn both_passes_hold_no_more_than_neither(t in recomputable(), cells in 0usize..5) {
        let passes = Passes { recompute: Recompute::Full, hoist: Hoist::By(cells), split_backward: true, ..Passes::default() };
        let passed = passes.apply(t.clone(), &Lowering::default(), &PLAIN.of(&t)).expect("sound");
        prop_assert!(peak(&passed) <= peak(&t) + 1e-6);
    }
}

#[test]
fn split_backwards_of_one_pipe_have_their_closed_forms() {
    for d in 1..=8 {
        for n in 1..=20 {
            let (df, nf) = (d as f64, f64::from(n));
            let split_of = |schedule, limit| {
                let how = Lowering { max_peak: limit, ..Lowering::default() };
                let halves = split(&timetable(schedule, &Shape::new(d, n)), &how, PLAIN);
                (makespan(&halves, &how, PLAIN), peak(&halves))
            };
            let gpipe = 3.0 * nf + 2.0 * (df - 1.0);
            assert_eq!(split_of("gpipe", None), (gpipe, nf), "D={d} N={n}");
            let zb_h1 = if nf >= df { 3.0 * nf + df - 1.0 } else { 2.0 * df + 2.0 * nf - 1.0 };
            assert_eq!(split_of("dapple", None).0, zb_h1, "D={d} N={n}");
            // With no more saved activations than before, this is ZB-H1.
            assert_eq!(split_of("dapple", Some(df)).0, zb_h1, "D={d} N={n}");
        }
    }
}

#[test]
fn backwards_that_are_split_stay_where_they_are() {
    let zb_h1 = timetable("zb-h1", &Shape::new(4, 8));
    assert_eq!(split(&zb_h1, &Lowering::default(), PLAIN), zb_h1);
}

/// Both ops of a pair can be split: the rest of the pair is still one step.
#[test]
fn pairs_are_split_on_either_side() {
    let mut t = timetable("dapple", &Shape::new(2, 4));
    let [forward, backward] = [t.rows[0][2], t.rows[0][1]].map(|cell| ops(&[cell])[0]);
    let (forward, backward) =
        if backward.kind == Kind::Backward { (forward, backward) } else { (backward, forward) };
    assert_eq!((forward.kind, backward.kind), (Kind::Forward, Kind::Backward));
    for pair in [Cell::Pair(forward, backward), Cell::Pair(backward, forward)] {
        t.rows[0].splice(1..=2, [pair]);
        let halves = split(&t, &Lowering::default(), PLAIN);
        let kinds = |cell: &Cell| cell.ops().map(|op| op.kind.letter()).collect::<String>();
        assert!(["FI", "IF"].contains(&kinds(&halves.rows[0][1]).as_str()));
        lower(&halves, &Lowering::default()).expect("proven");
        t = timetable("dapple", &Shape::new(2, 4));
    }
}

/// An overlapping pair is worth more than the idle time that its weight half could fill.
#[test]
fn pairs_that_save_time_stay_whole() {
    let t = timetable("dualpipe", &Shape::new(4, 8));
    let pairs = |t: &Timetable| -> Vec<Cell> {
        let cells = t.rows.iter().flatten().copied();
        cells.filter(|cell| matches!(cell, Cell::Pair(..))).collect()
    };
    let costs = UniformCosts { pair: Some(2.5), ..PLAIN.of(&t) };
    let plain = Lowering::default();
    let halves = split_backward(&t, &plain, &costs).expect("sound");
    assert_eq!(pairs(&halves), pairs(&t));
    let span = |t| simulate(&lower(t, &plain).expect("proven"), &costs).makespan();
    assert!(span(&halves) <= span(&t));
}

/// A drawing of a schedule after the passes, with F = 1 and B = 2.
fn draw(
    schedule: &str,
    shape: Shape,
    hoist: Option<Hoist>,
    is_split: bool,
    limit: Option<f64>,
) -> String {
    let plain = timetable(schedule, &shape);
    let how = how(limit);
    let again = hoist.map_or_else(|| plain.clone(), |hoist| recomputed(&plain, hoist, limit));
    let t = if is_split { split(&again, &how, PLAIN) } else { again };
    let (program, timeline) = run(&t, &how, PLAIN);
    let joined = |peaks: &[f64]| peaks.iter().map(f64::to_string).collect::<Vec<_>>().join(" ");
    let kept = match hoist {
        Some(_) => format!(", checkpointed inputs {}", joined(&peak_kept(&program))),
        None => String::new(),
    };
    let drawing = text::timeline(&timeline);
    let (makespan, bubble) = (timeline.makespan(), timeline.bubble_ratio());
    let peaks = joined(program.peaks());
    format!(
        "{}\nmakespan {makespan}, bubble ratio {bubble:.3}, peak {peaks}{kept}",
        drawing.trim_end()
    )
}

#[test]
fn micro_batches_of_no_parts_are_refused() {
    let timetable = find("gpipe").expect("known").timetable(&Shape::new(2, 1)).expect("fits");
    let (rows, n_micro_batches) = (vec![Vec::new(); 2], 0);
    let none =
        Timetable { units_per_micro: 0, is_sliced: true, n_micro_batches, rows, ..timetable };
    let refused = lower(&none, &Lowering::default()).expect_err("nothing to train on").to_string();
    assert!(refused.contains("units_per_micro is at least 1"), "{refused}");
}

/// The memory of moves is counted for one micro-batch at a time.
#[test]
fn a_move_of_several_micro_batches_is_refused() {
    let mut moved = timetable("gpipe", &Shape::new(1, 2));
    let Cell::One(forward) = moved.rows[0][0] else { panic!("a pair") };
    let of_both = |kind| {
        let mut op = Op { kind, ..forward };
        op.span.len = 2;
        op
    };
    let cells = [Kind::Offload, Kind::Reload].map(|kind| Cell::One(of_both(kind)));
    moved.rows[0].splice(2..2, cells);
    let refusal = lower(&moved, &Lowering::default()).expect_err("two at once");
    assert_eq!(refusal.reason, Reason::SeveralMoves(of_both(Kind::Offload)));
}

/// The micro-batches of each pipe, for pipes of one stage on one worker each that update at every
/// step.
fn each_step(n_steps: u32, n_micro_batches: u32, pipes: &[&[u32]]) -> Program {
    let row = |(pipe, micro_batches): (usize, &&[u32])| {
        let op = |kind: &str, micro_batch: &u32| json!({"kind": kind, "pipe": pipe, "stage": 0, "micro_batches": [micro_batch]});
        micro_batches.iter().flat_map(|n| [op("F", n), op("B", n)]).collect::<Vec<_>>()
    };
    let n = pipes.len();
    let timetable = json!({
        "schedule": "steps apart", "depth": n, "stages": 1, "pipes": n, "micro_batches": n_micro_batches,
        "update": "each-step", "steps": n_steps, "placement": (0..n).map(|pipe| [pipe]).collect::<Vec<_>>(),
        "rows": pipes.iter().enumerate().map(row).collect::<Vec<_>>(),
    });
    let timetable = from_json(timetable.to_string().as_bytes()).expect("a timetable");
    lower(&timetable, &Lowering::default()).unwrap_or_else(|refusal| panic!("{refusal}"))
}

#[test]
fn a_worker_may_have_no_micro_batch_of_a_step_between_two() {
    let program = each_step(3, 6, &[&[0, 2, 3, 4], &[1, 5]]);
    assert_eq!(program.window().n_steps(), 3);
}

/// A slow worker has all of the first step, and two others share the second.
#[test]
fn the_second_of_two_steps_may_be_on_other_workers() {
    let program = each_step(2, 8, &[&[4, 5], &[6, 7], &[0, 1, 2, 3]]);
    assert_eq!(program.window().n_steps(), 2);
}

macro_rules! drawings {
    ($($name:ident: $schedule:literal, $shape:expr, $hoist:expr, $is_split:literal, $limit:expr;)*) => {
        $(#[test]
        fn $name() {
            let drawn = draw($schedule, $shape, $hoist, $is_split, $limit);
            insta::assert_snapshot!(stringify!($name), drawn);
        })*
    };
}

drawings! {
    split_gpipe: "gpipe", Shape::new(4, 4), None, true, None;
    split_dapple: "dapple", Shape::new(4, 8), None, true, None;
    split_chimera: "chimera", Shape::new(4, 8), None, true, None;
    split_halving: "chimera", Shape { scaling: Scaling::Halving, ..Shape::new(4, 4) }, None, true, None;
    recomputed_on_demand: "chimera", Shape::new(4, 4), Some(Hoist::OnDemand), false, None;
    recomputed_early: "chimera", Shape::new(4, 4), Some(Hoist::By(0)), false, None;
    recomputed_hoisted: "chimera", Shape::new(8, 8), Some(Hoist::By(3)), false, None;
    recomputed_doubling: "chimera", Shape { scaling: Scaling::Doubling, ..Shape::new(4, 8) }, Some(Hoist::By(0)), false, None;
    recomputed_and_split: "dapple", Shape::new(4, 6), Some(Hoist::Auto), true, Some(2.0);
}
