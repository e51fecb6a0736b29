//! Two models in one step: each trains as it does alone, to the bit unless one has several pipes. Its micro-batches
//! then split those of the other among pipes, whose gradients are added in another order.

use std::time::Duration;

use chimera_engine::fault::Fault;
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::graph::StageGraph;
use chimera_schedule::ids::StageId;
use chimera_schedule::lower::{combine, forward_only, freeze};
use chimera_schedule::op::Kind;
use chimera_schedule::schedule::{Shape, find};
use chimera_schedule::search::{Search, search};
use chimera_schedule::timetable::Timetable;

use crate::graphs::{Node, Pairs, towers};
use crate::training::{Outcome, Run, train_stages};

fn timetable(schedule: &str, shape: &Shape) -> Timetable {
    find(schedule).expect("known").timetable(shape).expect("fits")
}

/// A better order of both models' ops.
fn ordered(combined: Timetable) -> Timetable {
    let how = Search { n_orders: 200, time_limit: Duration::MAX, ..Search::default() };
    let starts = [(combined, UniformCosts::new(1.0, 2.0, 0.0))];
    search(&starts, &how, |_| {}).expect("an order").timetable
}

/// Trains stages of `graph` from number `first` on.
fn train(
    run: &Run,
    timetable: &Timetable,
    (graph, first): (&StageGraph, usize),
    is_frozen: impl Fn(usize) -> bool + Sync,
) -> Outcome {
    let stage = |id: StageId| -> Result<Node, Fault> {
        let at = first + id.index();
        let node = Node::of(graph, StageId(at as u16));
        Ok(if is_frozen(at) { node.frozen() } else { node })
    };
    train_stages(run, timetable, &Pairs, stage).expect("trains")
}

/// Compares a step of both models with a step of each.
fn trains_as_each_alone(run: &Run, first: &Timetable, second: &Timetable, is_frozen: bool) {
    let combined = ordered(combine(first, second).expect("combined"));
    let (n_before, graph) = (first.placement.n_stages(), &combined.graph);
    let is_frozen = |at: usize| is_frozen && at >= n_before;
    let both = train(run, &combined, (graph, 0), is_frozen);
    let alone = [
        train(run, first, (graph, 0), is_frozen),
        train(run, second, (graph, n_before), is_frozen),
    ];
    let said = format!("{} in {run:?}", combined.schedule);
    let n_weights: usize = alone.iter().map(|one| one.weights.len()).sum();
    assert_eq!(both.weights.len(), n_weights, "{said}");
    let n_pipes = [first, second].map(|timetable| timetable.placement.n_pipes());
    let tolerance = if n_pipes == [1, 1] { 0.0 } else { 1e-12 };
    let same = |many: &[f64], one: &[f64], what: &str| {
        assert_eq!(many.len(), one.len(), "{what}");
        let size = one.iter().fold(0.0, |size: f64, x| size.max(x.abs()));
        for (a, b) in many.iter().zip(one) {
            assert!((a - b).abs() <= tolerance * size, "{what} of {said}: {a} for {b}");
        }
    };
    for one in &alone {
        for (name, weights) in &one.weights {
            same(&both.weights[name], weights, &format!("{name:?}"));
        }
        for (name, gradients) in &one.gradients {
            same(&both.gradients[name], gradients, &format!("gradient of {name:?}"));
        }
    }
    for (step, loss) in both.losses.iter().enumerate() {
        let sum = alone[0].losses[step] + alone[1].losses[step];
        assert!((loss - sum).abs() < 1e-6 * sum, "{loss} for {sum} after {step} of {said}");
    }
}

fn run() -> Run {
    Run { clip: None, ..Run::new("dapple", Shape::new(4, 8)) }
}

#[test]
fn models_with_unlike_micro_batches_train_as_alone() {
    let of = |schedule, n| timetable(schedule, &Shape::new(4, n));
    let wide = Run { width: 2, is_delayed: true, ..run() };
    for (first, second) in [
        (of("dapple", 8), of("dapple", 4).opposite()),
        (of("dapple", 3), of("gpipe", 7)),
        (of("chimera", 8), of("dapple", 5)),
        (of("chimera", 4), of("gems", 8)),
        (of("zb-v", 6), of("zb-h1", 8).opposite()),
    ] {
        trains_as_each_alone(&run(), &first, &second, false);
        trains_as_each_alone(&wide, &first, &second, false);
    }
}

#[test]
fn a_frozen_model_goes_forward_beside_a_trained_one() {
    let trained = timetable("chimera", &Shape::new(4, 8));
    let frozen = forward_only(timetable("dapple", &Shape::new(4, 12)).opposite());
    assert!(frozen.ops().all(|op| op.kind == Kind::Forward));
    trains_as_each_alone(&run(), &trained, &frozen, true);
}

/// The loss of the student reads the output of the teacher, whose stages only go forward.
#[test]
fn a_teacher_is_frozen_beside_its_student() {
    let graph = towers(4); // stages 0 and 1 are the teacher, 2 the student, 3 the loss
    let is_teacher = |stage: usize| stage < 2;
    let of = |timetable: Timetable| {
        let timetable = Timetable { graph: graph.clone(), ..timetable };
        freeze(timetable, &[StageId(0), StageId(1)])
    };
    let taught = of(timetable("chimera", &Shape::new(4, 8)));
    assert!(taught.ops().all(|op| op.stage.0 > 1 || op.kind == Kind::Forward));
    let alone = of(timetable("interleaved", &Shape { n_chunks: 4, ..Shape::new(1, 8) }));
    let [many, one] =
        [taught, alone].map(|timetable| train(&run(), &timetable, (&graph, 0), is_teacher));
    assert!(many.weights.keys().eq(one.weights.keys()));
    for (name, weights) in &many.weights {
        for (a, b) in weights.iter().zip(&one.weights[name]) {
            assert!((a - b).abs() < 1e-12, "{name:?}: {a} for {b}");
        }
    }
}

#[test]
fn a_model_that_is_a_graph_trains_beside_a_chain() {
    let graph = towers(4);
    let of_graph = Timetable { graph, ..timetable("dapple", &Shape::new(4, 6)) };
    trains_as_each_alone(&run(), &of_graph, &timetable("dapple", &Shape::new(4, 9)), false);
}
