//! A job that continues with fewer ranks computes the same steps.

use chimera_schedule::analyze::simulate;
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::ids::{Rank, StageId, WorkerId};
use chimera_schedule::lower::{Lowering, Passes, Recompute, TooNarrow, lower, narrow};
use chimera_schedule::render::text;
use chimera_schedule::schedule::{SCHEDULES, Scaling, Shape, find};
use chimera_schedule::timetable::Timetable;
use chimera_schedule::update::Update;
use proptest::prelude::*;

use crate::training::{Run, train, train_timetable};

fn timetable(schedule: &str, shape: &Shape, passes: Passes) -> Timetable {
    let timetable = find(schedule).expect("known").timetable(shape).expect("fits");
    let costs = costs(&timetable);
    passes.apply(timetable, &Lowering::default(), &costs).expect("sound")
}

fn costs(timetable: &Timetable) -> UniformCosts {
    UniformCosts::new(1.0, 2.0, 0.0).per_units(timetable.units_per_micro)
}

fn makespan(timetable: &Timetable) -> f64 {
    let program = lower(timetable, &Lowering::default()).unwrap_or_else(|e| panic!("{e}"));
    simulate(&program, &costs(timetable)).makespan()
}

fn without(timetable: &Timetable, width: usize, dead: &[u32]) -> Result<Timetable, TooNarrow> {
    let dead: Vec<Rank> = dead.iter().copied().map(Rank).collect();
    narrow(timetable, width, &dead, &costs(timetable))
}

#[test]
fn the_stages_of_a_dead_rank_go_to_who_has_the_least_to_do() {
    let chimera = timetable("chimera", &Shape::new(4, 4), Passes::default());
    let narrowed = without(&chimera, 1, &[2]).expect("stages are held twice");
    let program = lower(&narrowed, &Lowering::default()).expect("proven");
    insta::assert_snapshot!(text::timeline(&simulate(&program, &costs(&narrowed))));
}

/// The throughput is at least 0.8 (D - 1) / D.
#[test]
fn little_more_is_lost_than_the_dead_rank_did() {
    for (d, n) in [(4, 4), (4, 8), (4, 16), (8, 8), (8, 16), (8, 32)] {
        let whole = timetable("chimera", &Shape::new(d, n), Passes::default());
        for dead in 0..d as u32 {
            let narrowed = without(&whole, 1, &[dead]).expect("stages are held twice");
            let ratio = makespan(&whole) / makespan(&narrowed);
            let least = 0.8 * (d - 1) as f64 / d as f64;
            assert!(ratio >= least, "D={d} N={n} without {dead}: {ratio:.3} < {least:.3}");
        }
    }
}

/// No rank has more than one micro-batch of a stage more work than another.
#[test]
fn all_that_live_share_the_work_of_a_dead_rank() {
    for n in [8, 16, 32] {
        let whole = timetable("chimera", &Shape::new(8, n), Passes::default());
        for dead in 0..8 {
            let narrowed = without(&whole, 1, &[dead]).expect("stages are held twice");
            let program = lower(&narrowed, &Lowering::default()).expect("proven");
            let busy = simulate(&program, &costs(&narrowed)).busy();
            let (least, most) = busy.iter().fold((f64::MAX, 0.0f64), |(least, most), busy| {
                (least.min(*busy), most.max(*busy))
            });
            assert!(most - least <= 3.0, "N={n} without {dead}: {busy:?}");
        }
    }
}

/// A rank gets the weights of at most one additional stage, whatever has died.
#[test]
fn a_rank_is_given_one_stage_at_most() {
    let whole = timetable("chimera", &Shape::new(8, 16), Passes::default());
    for dead in [&[3][..], &[0, 1], &[2, 6]] {
        let placement = without(&whole, 1, dead).expect("stages are held twice").placement;
        for worker in (0..8 - dead.len() as u16).map(WorkerId) {
            let held = placement.stages_of(worker);
            assert!(held.len() <= 3, "{worker} without {dead:?}: {held:?}");
        }
    }
}

/// The work of eight ranks goes to seven, which takes 8/7 of the time, and some micro-batches wait
/// for others.
#[test]
fn a_step_of_seven_ranks_takes_little_more_than_the_time_of_its_work() {
    for scaling in [Scaling::Direct, Scaling::Doubling, Scaling::Halving] {
        for n in [8, 16, 32] {
            let shape = Shape { scaling, ..Shape::new(8, n) };
            let whole = timetable("chimera", &shape, Passes::default());
            for dead in 0..8 {
                let narrowed = without(&whole, 1, &[dead]).expect("stages are held twice");
                let ratio = makespan(&narrowed) / makespan(&whole);
                assert!(ratio <= 1.21, "{scaling:?} N={n} without {dead}: {ratio:.3}");
            }
        }
    }
}

#[test]
fn what_cannot_go_on_is_refused() {
    let reason = |schedule, width, dead: &[u32]| {
        let whole = timetable(schedule, &Shape::new(4, 4), Passes::default());
        without(&whole, width, dead).expect_err("refused").to_string()
    };
    assert_eq!(reason("1f1b", 1, &[2]), "no rank that lives holds stage 2");
    assert_eq!(reason("chimera", 1, &[0, 3, 1]), "no rank that lives holds stage 0, stage 3");
    assert_eq!(reason("chimera", 2, &[8]), "rank 8 does not exist: there are 8, counted from 0");
    assert!(reason("pipedream", 2, &[0]).contains("asynchronous"));
    // With 64-bit ranks, this many groups of four ranks would wrap around to one.
    assert!(reason("chimera", usize::MAX / 4 + 2, &[2]).contains("pipes in all groups are more"));
}

/// Trains with the remaining ranks of a job of two groups, and of Chimera with one group.
#[test]
fn fewer_ranks_train_the_same() {
    let halving = Shape { scaling: Scaling::Halving, ..Shape::new(4, 4) };
    let full = Passes { recompute: Recompute::Full, ..Passes::default() };
    let split = Passes { split_backward: true, ..Passes::default() };
    for (schedule, shape, width, dead, passes) in [
        ("chimera", Shape::new(4, 4), 1, &[1][..], Passes::default()),
        ("chimera", halving, 1, &[3], Passes::default()),
        ("1f1b", Shape::new(4, 2), 2, &[1, 6], full),
        ("zb-v", Shape::new(2, 2), 2, &[0], Passes::default()),
        ("dualpipe", Shape::new(4, 8), 1, &[0, 1], Passes::default()),
        ("interleaved", Shape::new(2, 2), 2, &[3], split),
    ] {
        let run = Run { width, tied: true, passes, ..Run::new(schedule, shape) };
        let narrowed = without(&timetable(schedule, &shape, passes), width, dead).expect("narrow");
        let n_micro_batches = narrowed.n_micro_batches;
        let shape = Shape { n_micro_batches, ..shape };
        let few = Run { width: 1, shape, ..run.clone() };
        let (few, all) = (train_timetable(&few, &narrowed), train(&run));
        let (few, all) = (few.expect("trains"), all.expect("trains"));
        assert!(few.weights.keys().eq(all.weights.keys()) && !few.weights.is_empty());
        for (name, values) in &all.weights {
            for (a, b) in values.iter().zip(&few.weights[name]) {
                assert!(
                    (a - b).abs() <= 1e-12 * a.abs().max(1.0),
                    "{name:?}: {a} and {b}, {run:?}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Whatever dies, the others go on while they have a copy of each stage.
    #[test]
    fn what_lives_is_proven(
        schedule in 0..SCHEDULES.len(),
        depth in 2..6usize,
        n in 1..9u32,
        width in 1..4usize,
        dead in proptest::collection::vec(0..64u32, 1..4),
        passes in (any::<bool>(), any::<bool>()),
    ) {
        let Ok(whole) = SCHEDULES[schedule].timetable(&Shape::new(depth, n)) else { return Ok(()) };
        prop_assume!(whole.update == Update::Flush);
        let recompute = if passes.0 { Recompute::Full } else { Recompute::None };
        let passes = Passes { recompute, split_backward: passes.1, ..Passes::default() };
        let costs = costs(&whole);
        let whole = passes.apply(whole, &Lowering::default(), &costs).expect("sound");
        let n_ranks = (depth * width) as u32;
        let dead: Vec<Rank> = dead.into_iter().map(|rank| Rank(rank % n_ranks)).collect();
        let is_held = |stage: StageId| {
            whole.placement.holders(width, stage).iter().any(|rank| !dead.contains(rank))
        };
        let is_whole = (0..whole.placement.n_stages() as u16).map(StageId).all(is_held);
        match narrow(&whole, width, &dead, &costs) {
            Err(TooNarrow::NothingLeft(_)) => prop_assert!(!is_whole),
            Err(other) => prop_assert!(false, "{other}"),
            Ok(narrowed) => {
                prop_assert!(is_whole);
                prop_assert!(lower(&narrowed, &Lowering::default()).is_ok());
                prop_assert_eq!(narrowed.n_ops(), width * whole.n_ops());
                prop_assert!(narrowed.rows.iter().all(|row| !row.is_empty()));
            }
        }
    }
}
