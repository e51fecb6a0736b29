//! Costs that differ from stage to stage, and costs of pairs: a step takes their sum.

use chimera_schedule::analyze::simulate;
use chimera_schedule::costs::{StageCosts, UniformCosts};
use chimera_schedule::ids::{PipeId, StageId};
use chimera_schedule::lower::{Lowering, lower};
use chimera_schedule::op::{Cell, Kind, Op};
use chimera_schedule::program::Program;
use chimera_schedule::schedule::{Shape, find};
use chimera_schedule::timetable::Timetable;
use proptest::prelude::*;

fn program(schedule: &str, shape: &Shape) -> Program {
    lower(&timetable(schedule, shape), &Lowering::default()).expect("proven")
}

fn timetable(schedule: &str, shape: &Shape) -> Timetable {
    find(schedule).expect("known").timetable(shape).expect("fits")
}

/// A timetable of one worker and one stage.
fn alone(n_micro_batches: u32, row: Vec<Cell>) -> Program {
    let shape = Shape::new(1, n_micro_batches);
    let timetable = Timetable { rows: vec![row], ..timetable("gpipe", &shape) };
    lower(&timetable, &Lowering::default()).expect("proven")
}

fn op(kind: Kind, micro_batch: u32) -> Op {
    Op::new(kind, PipeId(0), StageId(0), micro_batch)
}

proptest! {
    /// The slow stage waits only for its first forward and backward. This holds for any stage of
    /// GPipe, since all forwards come first, and for the last stage of 1F1B.
    #[test]
    fn a_line_is_as_slow_as_its_slowest_stage(
        depth in 1usize..=8, n in 1u32..=20, slow in 0usize..8, by in 1.0f64..5.0, b in 0.5f64..3.0
    ) {
        let one = UniformCosts::new(1.0, b, 0.0);
        for (schedule, slow) in [("gpipe", slow % depth), ("dapple", depth - 1)] {
            let mut stages = vec![one; depth];
            stages[slow] = one.share(by);
            let timeline = simulate(&program(schedule, &Shape::new(depth, n)), &StageCosts::new(stages));
            let want = (1.0 + b) * (f64::from(n) * by + depth as f64 - 1.0);
            prop_assert!((timeline.makespan() - want).abs() < 1e-9, "{schedule}, {want}");
        }
    }

    /// A single micro-batch meets every cost once: each stage's compute, and the messages of each
    /// stage except the last forward and the first backward.
    #[test]
    fn one_micro_batch_meets_every_cost_once(costs in prop::collection::vec(prop::array::uniform4(0.0f64..9.0), 1..8)) {
        let stages: Vec<UniformCosts> = costs.iter().map(|&[forward, input, weight, message]| {
            UniformCosts { input, weight, ..UniformCosts::new(forward, 0.0, message) }
        }).collect();
        let depth = stages.len();
        let compute: f64 = costs.iter().map(|[forward, input, weight, _]| forward + input + weight).sum();
        let messages: f64 = costs[..depth - 1].iter().chain(&costs[1..]).map(|c| c[3]).sum();
        let shape = Shape::new(depth, 1);
        let took = simulate(&program("dapple", &shape), &StageCosts::new(stages.clone())).makespan();
        prop_assert!((took - compute - messages).abs() < 1e-9, "{took}");
        // With split backwards, only the end of the step waits for a weight half.
        let split = simulate(&program("zb-h1", &shape), &StageCosts::new(stages)).makespan();
        let way_to = |s: usize| {
            let inputs: f64 = costs[s..].iter().map(|c| c[1]).sum();
            let forwards: f64 = costs.iter().map(|c| c[0]).sum();
            let there: f64 = costs[..depth - 1].iter().map(|c| c[3]).sum();
            let back: f64 = costs[s + 1..].iter().map(|c| c[3]).sum();
            forwards + there + inputs + back + costs[s][2]
        };
        let want = (0..depth).map(way_to).fold(0.0, f64::max);
        prop_assert!((split - want).abs() < 1e-9, "{split}, {want}");
    }

    /// Interleaved 1F1B on the same model as 1F1B has a v-th of its bubbles (Narayanan et al., SC
    /// 2021).
    #[test]
    fn chunks_are_shares_of_a_worker(depth in 1usize..=6, k in 1u32..=4, v in 1usize..=4) {
        let n = k * depth as u32;
        let shape = Shape { n_chunks: v, ..Shape::new(depth, n) };
        let costs = UniformCosts::new(1.0, 2.0, 0.0).share(1.0 / v as f64);
        let took = simulate(&program("interleaved", &shape), &costs).makespan();
        let want = 3.0 * f64::from(n) + 3.0 * (depth as f64 - 1.0) / v as f64;
        prop_assert!((took - want).abs() < 1e-9, "{took}, {want}");
    }
}

#[test]
fn a_pair_has_a_cost_of_its_own() {
    let (f, b) = (|m| op(Kind::Forward, m), |m| op(Kind::Backward, m));
    let cells = [f(0).into(), Cell::Pair(f(1), b(0)), Cell::Pair(b(1), f(2)), b(2).into()];
    let pairs = alone(3, cells.to_vec());
    let plain = UniformCosts::new(1.0, 2.0, 0.0);
    assert_eq!(simulate(&pairs, &plain).makespan(), 9.0);
    let overlapped = UniformCosts { pair: Some(2.5), ..plain };
    assert_eq!(simulate(&pairs, &overlapped).makespan(), 8.0);
    assert_eq!(simulate(&pairs, &StageCosts::new(vec![overlapped])).makespan(), 8.0);
    assert_eq!(simulate(&pairs, &overlapped.share(2.0)).makespan(), 16.0);
}

/// P is the time of a forward and a whole backward; a pair of halves takes the time of its ops.
#[test]
fn other_pairs_cost_the_sum_of_their_ops() {
    let cells = [
        op(Kind::Forward, 0).into(),
        Cell::Pair(op(Kind::Forward, 1), op(Kind::BackwardInput, 0)),
        Cell::Pair(op(Kind::BackwardInput, 1), op(Kind::BackwardWeight, 0)),
        op(Kind::BackwardWeight, 1).into(),
    ];
    let costs = UniformCosts { input: 3.0, weight: 5.0, pair: Some(100.0), ..UniformCosts::EQUAL };
    assert_eq!(simulate(&alone(2, cells.to_vec()), &costs).makespan(), 18.0);
}

/// In a mirrored pipeline the ops of a pair are on different stages: the forward's stage counts.
#[test]
fn a_pair_costs_what_the_stage_of_its_forward_says() {
    let stage = |kind, pipe, stage, m| Op::new(kind, PipeId(pipe), StageId(stage), m);
    use Kind::{Backward, Forward};
    let row = |pipe: u16| -> Vec<Cell> {
        let (mine, theirs) = (u32::from(pipe), u32::from(1 - pipe));
        vec![
            stage(Forward, pipe, 0, mine).into(),
            stage(Forward, 1 - pipe, 1, theirs).into(),
            Cell::Pair(stage(Forward, pipe, 0, mine + 2), stage(Backward, 1 - pipe, 1, theirs)),
            stage(Forward, 1 - pipe, 1, theirs + 2).into(),
            stage(Backward, 1 - pipe, 1, theirs + 2).into(),
            stage(Backward, pipe, 0, mine).into(),
            stage(Backward, pipe, 0, mine + 2).into(),
        ]
    };
    let rows = vec![row(0), row(1)];
    let timetable = Timetable { rows, ..timetable("chimera", &Shape::new(2, 4)) };
    let program = lower(&timetable, &Lowering::default()).expect("proven");
    let costs = |pair| UniformCosts { pair: Some(pair), ..UniformCosts::new(1.0, 2.0, 0.0) };
    let took = simulate(&program, &StageCosts::new(vec![costs(7.0), costs(100.0)])).makespan();
    assert_eq!(took, 1.0 + 1.0 + 7.0 + 1.0 + 2.0 + 2.0 + 2.0);
}

#[test]
fn to_recompute_has_a_cost_of_its_own() {
    let row = [Kind::Forward, Kind::Recompute, Kind::Backward].map(|kind| op(kind, 0).into());
    let program = alone(1, row.to_vec());
    let costs = UniformCosts::new(1.0, 2.0, 0.0);
    assert_eq!(simulate(&program, &costs).makespan(), 4.0);
    let slow = UniformCosts { recompute: 1.5, ..costs };
    assert_eq!(simulate(&program, &slow).makespan(), 4.5);
    assert_eq!(simulate(&program, &StageCosts::new(vec![slow])).makespan(), 4.5);
}
