use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::Graph;
use super::bound::lower_bound;
use super::capped::capped_bound;
use super::choice::choice_bound;
use super::graph::unordered;
use super::justify::justified;
use super::list::{Keys, Limits, Order, list};
use super::swaps::swapped;
use super::windows::Windows;
use crate::analyze::{peak_kept, simulate};
use crate::costs::UniformCosts;
use crate::ir::ids::{PipeId, StageId};
use crate::ir::op::{Cell, Kind, Op};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;
use crate::lower::{Hoist, Lowering, Recompute, Sync, lower, recompute};
use crate::program::Program;
use crate::schedule::{Shape, find};

const COSTS: UniformCosts = UniformCosts::new(1.0, 2.0, 0.0);

/// The rows in short form: kind, stage and micro-batch.
fn drawn(graph: &Graph, order: &Order) -> Vec<String> {
    let short = |cell: Cell| {
        let ops = cell.ops().map(|op| format!("{}{}{}", op.kind.letter(), op.stage.0, op.span));
        ops.collect::<Vec<_>>().join("+")
    };
    let rows = order.cells(graph).into_iter();
    rows.map(|row| row.into_iter().map(short).collect::<Vec<_>>().join(" ")).collect()
}

/// Keys that run backwards first, and otherwise in order of readiness.
fn backwards_first(graph: &Graph) -> Keys {
    let is_forward = |cell: &Cell| cell.ops().any(|op| op.kind == Kind::Forward);
    let urgency = graph.nodes.iter().map(|node| f64::from(is_forward(&node.cell)));
    Keys { urgency: urgency.collect(), ..Keys::default() }
}

fn at_most(worker: f64) -> Limits {
    Limits { worker: Some(worker), pipe: None }
}

#[test]
fn cells_wait_for_tokens_and_for_those_before_them_in_their_lane() {
    let costs = UniformCosts { message: 0.5, ..COSTS };
    let graph = Graph::of(&unordered(Placement::line(2), 2, true), &costs);
    let at = |kind, stage, micro| {
        let cell = Cell::One(Op::new(kind, PipeId(0), StageId(stage), micro));
        graph.nodes.iter().position(|node| node.cell == cell).expect("a node")
    };
    let waits = |node| {
        let mut preds: Vec<_> =
            graph.preds(node).iter().map(|e| (e.node as usize, e.lag)).collect();
        preds.sort_by_key(|(node, _)| *node);
        preds
    };
    use Kind::{BackwardInput, BackwardWeight, Forward};
    assert_eq!(waits(at(Forward, 0, 0)), []);
    assert_eq!(waits(at(Forward, 1, 1)), [(at(Forward, 0, 1), 0.5), (at(Forward, 1, 0), 0.0)]);
    let input = at(BackwardInput, 0, 0);
    assert_eq!(waits(input), [(at(Forward, 0, 0), 0.0), (at(BackwardInput, 1, 0), 0.5)]);
    assert_eq!(waits(at(BackwardWeight, 0, 0)), [(input, 0.0)]);
    // F, message, F, I, message, I, W.
    assert_eq!(graph.heads()[at(BackwardWeight, 0, 0)], 5.0);
    // The other micro-batch's forward on this worker comes before all that.
    assert_eq!(graph.reversed().heads()[at(Forward, 0, 0)], 6.0);
}

#[test]
fn activations_of_a_pair_are_of_two_micro_batches() {
    let timetable = find("dualpipe").expect("known").timetable(&Shape::new(2, 4)).expect("fits");
    let graph = Graph::of(&timetable, &COSTS);
    for graph in [&graph, &graph.reversed()] {
        for node in &graph.nodes {
            let is_pair = matches!(node.cell, Cell::Pair(..));
            assert_eq!(is_pair, node.adds > 0.0 && node.frees > 0.0);
            assert_eq!(is_pair, node.added.micro != node.freed.micro);
            assert_eq!(is_pair, node.added.pipe != node.freed.pipe);
        }
    }
}

#[test]
fn backwards_first_is_1f1b_as_far_as_there_is_room() {
    let graph = Graph::of(&unordered(Placement::line(2), 3, false), &COSTS);
    let order = list(&graph, &backwards_first(&graph), &at_most(2.0)).expect("an order");
    assert_eq!(drawn(&graph, &order), ["F00 F01 B00 F02 B01 B02", "F10 B10 F11 B11 F12 B12"]);
    assert_eq!(order.makespan, 12.0);
    let tight = list(&graph, &backwards_first(&graph), &at_most(1.0)).expect("an order");
    assert_eq!(drawn(&graph, &tight), ["F00 B00 F01 B01 F02 B02", "F10 B10 F11 B11 F12 B12"]);
    assert_eq!(tight.makespan, 18.0);
    assert!(list(&graph, &backwards_first(&graph), &at_most(0.5)).is_none());
}

/// At time 1 a forward of the worker's own pipe could run, and at 1.5 one on a deeper stage of the
/// other pipe.
#[test]
fn patience_waits_for_more_urgent_ops() {
    let costs = UniformCosts { message: 0.5, ..COSTS };
    let graph = Graph::of(&unordered(Placement::mirrored(2, 1), 4, false), &costs);
    let stage = |cell: &Cell| cell.ops().map(|op| f64::from(op.stage.0)).sum::<f64>();
    let begins = |patience| {
        let urgency = graph.nodes.iter().map(|node| -stage(&node.cell)).collect();
        let keys = Keys { urgency, patience, ..Keys::default() };
        let order = list(&graph, &keys, &Limits::default()).expect("an order");
        drawn(&graph, &order).swap_remove(0)[..7].to_string()
    };
    assert_eq!([0.0, 0.4, 0.5].map(begins), ["F00 F02", "F00 F02", "F00 F11"]);
}

#[test]
fn late_releases_order_cells_late_but_they_run_early() {
    let graph = Graph::of(&unordered(Placement::line(1), 2, false), &COSTS);
    let first = Cell::One(Op::new(Kind::Forward, PipeId(0), StageId(0), 1));
    let releases =
        graph.nodes.iter().map(|node| if node.cell == first { 2.0 } else { 0.0 }).collect();
    let keys = Keys { urgency: vec![0.0; graph.nodes.len()], releases, patience: 0.0 };
    let order = list(&graph, &keys, &Limits::default()).expect("an order");
    assert_eq!(drawn(&graph, &order), ["F00 B00 F01 B01"]);
    assert_eq!(order.makespan, 6.0);
}

fn placements() -> impl Strategy<Value = Placement> {
    // Two or four pipes with as many chunks as workers hold, neighbours in opposite directions.
    let waves = |depth: usize, chunks: usize, f: usize| {
        let down: Vec<_> = Placement::wave(depth, chunks).pipes()[0].clone();
        let up = down.iter().map(|w| crate::ir::ids::WorkerId((depth - 1 - w.index()) as u16));
        let pipes = [down.clone(), up.collect()].into_iter().cycle().take(2 * f);
        Placement::new(depth, pipes.collect()).expect("sound")
    };
    prop_oneof![
        (1usize..=6).prop_map(Placement::line),
        (1usize..=5, 1usize..=4).prop_map(|(d, chunks)| Placement::wave(d, chunks)),
        (1usize..=5, 1usize..=3).prop_map(|(d, chunks)| Placement::interleaved(d, chunks)),
        (1usize..=6).prop_map(|d| Placement::mirrored(d, 1)),
        (1usize..=3).prop_map(|half| Placement::mirrored(2 * half, 2)),
        (1usize..=4, 1usize..=4, 1usize..=2).prop_map(move |(d, v, f)| waves(d, v, f)),
    ]
}

fn proven(timetable: &Timetable, order: &Order, graph: &Graph, max_peak: Option<f64>) -> Program {
    let timetable = Timetable { rows: order.cells(graph), ..timetable.clone() };
    let how = Lowering { sync: Sync::AtEnd, max_peak, ..Lowering::default() };
    lower(&timetable, &how).unwrap_or_else(|refusal| panic!("{refusal}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// For all keys there is an order under every limit with room for one micro-batch. It is
    /// proven, takes the time it claims, and is no shorter than the bound. The same holds for its
    /// justified order, and for that after swaps.
    #[test]
    fn every_list_ends_and_is_proven(
        placement in placements(),
        n in 1u32..=9,
        splits: bool,
        recomputes: bool,
        worker in prop::option::of(2u32..=12),
        pipe in prop::option::of(2u32..=8),
        message in prop::sample::select(vec![0.0, 0.75]),
        patience in prop::sample::select(vec![0.0, 1.0, 3.0]),
        seed: u64,
    ) {
        let limits = Limits {
            worker: worker.map(|halves| f64::from(halves) / 2.0),
            pipe: pipe.map(|halves| f64::from(halves) / 2.0),
        };
        let costs = UniformCosts { message, ..COSTS };
        let mut timetable = unordered(placement, n, splits);
        if recomputes {
            let how = Lowering::default();
            timetable = recompute(&timetable, |_, _| Recompute::Full, Hoist::By(0), &how, &costs)
                .expect("it is not looked at");
        }
        let graph = Graph::of(&timetable, &costs);
        let mut random = seed;
        let urgency = graph.nodes.iter().map(|_| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 40) as f64
        });
        let keys = Keys { urgency: urgency.collect(), patience, ..Keys::default() };
        let order = list(&graph, &keys, &limits).expect("room for one micro-batch");
        let graphs = [&graph, &graph.reversed()];
        let again = justified(graphs, &order, &limits, 2.0, patience).expect("room again");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let swaps = Limits { pipe: None, ..limits.clone() };
        let better = swapped(&graph, &again, &swaps, 40, &mut rng, &|| false);
        prop_assert!(better.makespan <= again.makespan + 1e-9);
        if limits.worker.is_none() {
            let windows = Windows::of(&graph, graphs[1]).expect("few cells");
            let windows = windows.until(better.makespan, 100, &|| false).expect("an order in time");
            let [heads, tails] = windows.around();
            for (id, node) in graph.nodes.iter().enumerate() {
                prop_assert!(heads[id] <= better.starts[id] + 1e-6);
                let end = better.starts[id] + node.takes;
                prop_assert!(end + tails[id] <= better.makespan + 1e-6);
            }
        }
        for order in [order, again, better] {
            let program = proven(&timetable, &order, &graph, limits.worker);
            prop_assert!((simulate(&program, &costs).makespan() - order.makespan).abs() < 1e-9);
            prop_assert!(order.makespan >= lower_bound(&graph) - 1e-9);
            let objective = order.objective(&graph);
            prop_assert!((objective.peak - program.peak()).abs() < 1e-5);
            let kept = peak_kept(&program).into_iter().fold(0.0, f64::max);
            prop_assert!((objective.kept - kept).abs() < 1e-5 && (kept > 0.0) == recomputes);
        }
    }

    /// The bounds are below the time of every schedule of the table, including pairs and halved
    /// micro-batches. The bound under a memory limit uses the schedule's own peak.
    #[test]
    fn no_schedule_is_below_the_bound(
        schedule in 0..crate::schedule::SCHEDULES.len(), half in 1usize..=4, n in 1u32..=4, b in 1u32..=3
    ) {
        let shape = Shape::new(2 * half, 4 * n * half as u32);
        let timetable = crate::schedule::SCHEDULES[schedule].timetable(&shape).expect("fits");
        let costs = UniformCosts::new(1.0, f64::from(b), 0.25).per_units(timetable.units_per_micro);
        let program = lower(&timetable, &Lowering::default()).expect("proven");
        let makespan = simulate(&program, &costs).makespan();
        let graph = Graph::of(&timetable, &costs);
        prop_assert_eq!(super::makespan(&timetable, &costs), makespan);
        prop_assert!(lower_bound(&graph) <= makespan + 1e-9);
        let peak = program.peak();
        prop_assert!(capped_bound(&graph, peak) <= makespan + 1e-9, "{}", timetable.schedule);
        for may_recompute in [false, true] {
            let bound = choice_bound(&graph, &costs, peak, may_recompute);
            prop_assert!(bound <= makespan + 1e-9, "{}", timetable.schedule);
        }
    }
}
