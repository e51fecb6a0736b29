//! Stages in a graph train as they do on one worker, with any schedule.

use chimera_engine::stage::conformance;
use chimera_schedule::analyze::simulate;
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::effects::TokenKind;
use chimera_schedule::graph::StageGraph;
use chimera_schedule::ids::StageId;
use chimera_schedule::lower::{Hoist, Lowering, Passes, Recompute, lower};
use chimera_schedule::render::text;
use chimera_schedule::schedule::{Scaling, Shape, find};
use chimera_schedule::timetable::Timetable;

use crate::graphs::{DEVICE, Node, Pairs, all, nodes, skips};
use crate::training::{Outcome, Run, train_stages};

#[test]
fn stages_of_graphs_conform() {
    for n in [4, 6] {
        for (_, graph) in all(n) {
            conformance::graph(&DEVICE, &graph, || nodes(&graph), &Pairs);
        }
    }
}

/// The timetable of a schedule for a graph.
fn timetable(run: &Run, graph: &StageGraph) -> Timetable {
    let chain = find(run.schedule).expect("known").timetable(&run.shape).expect("fits");
    let timetable = Timetable { graph: graph.clone(), ..chain };
    let costs = UniformCosts::new(1.0, 2.0, 0.0).per_units(timetable.units_per_micro);
    run.passes.apply(timetable, &Lowering::default(), &costs).expect("sound")
}

fn train(run: &Run, graph: &StageGraph) -> Outcome {
    let stage = |id| Ok(Node::of(graph, id));
    train_stages(run, &timetable(run, graph), &Pairs, stage).expect("trains")
}

/// Compares a run with the one on one worker with one micro-batch.
fn assert_equivalent(run: &Run, (name, graph): (&str, &StageGraph)) {
    let n_samples = run.width * run.shape.n_micro_batches as usize * run.micro_batch_size;
    let alone = Run {
        width: 1,
        micro_batch_size: n_samples,
        shape: Shape { n_chunks: graph.n_stages(), ..Shape::new(1, 1) },
        schedule: "interleaved",
        passes: Passes::default(),
        ..run.clone()
    };
    let (many, one) = (train(run, graph), train(&alone, graph));
    let close = |what: &str, a: &[f64], b: &[f64], tolerance: f64| {
        assert_eq!(a.len(), b.len(), "{what}");
        let size = b.iter().fold(1e-9, |m: f64, x| m.max(x.abs()));
        let worst = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
        assert!(worst <= tolerance * size, "{what}: {worst:e} off {size:e} in {name}, {run:?}");
    };
    // Scalars cross the device's f32 boundary; gradients and weights do not.
    close("losses", &many.losses, &one.losses, 1e-5);
    close("norms", &many.norms, &one.norms, 1e-5);
    assert!(many.gradients.keys().eq(one.gradients.keys()) && !one.gradients.is_empty());
    for (name, values) in &many.gradients {
        close(&format!("gradient {name:?}"), values, &one.gradients[name], 1e-12);
    }
    for (name, values) in &many.weights {
        close(&format!("weight {name:?}"), values, &one.weights[name], 1e-12);
    }
}

/// Runs of four stages on two or four workers, and of eight on four.
fn runs() -> Vec<(u16, Run)> {
    let four = |schedule, n| (4, Run::new(schedule, Shape::new(4, n)));
    let chunks = Shape { n_chunks: 2, ..Shape::new(2, 4) };
    let pipes = Shape { n_pipes: 4, ..Shape::new(4, 6) };
    let scaled = |scaling, n| Shape { scaling, ..Shape::new(4, n) };
    vec![
        four("gpipe", 3),
        four("dapple", 6),
        four("gems", 4),
        four("zb-h1", 6),
        four("zb-h2", 7),
        four("chimera", 4),
        (4, Run::new("chimera", pipes)),
        (4, Run::new("chimera", scaled(Scaling::Halving, 8))),
        (4, Run::new("chimera", scaled(Scaling::Doubling, 8))),
        (4, Run::new("interleaved", chunks)),
        (4, Run::new("zb-v", Shape::new(2, 5))),
        (8, Run::new("v-half", Shape::new(4, 6))),
        (8, Run::new("hanayo", Shape { n_waves: 1, ..Shape::new(4, 5) })),
        (4, Run::new("dualpipe", Shape::new(4, 8))),
        (8, Run::new("dualpipe-v", Shape::new(4, 8))),
        (4, Run::new("mixpipe", Shape::new(4, 6))),
    ]
}

#[test]
fn graphs_train_as_on_one_worker() {
    for (n_stages, run) in runs() {
        for (name, graph) in &all(n_stages) {
            assert_equivalent(&run, (name, graph));
            let is_delayed = Run { is_delayed: true, width: 2, ..run.clone() };
            assert_equivalent(&is_delayed, (name, graph));
        }
    }
}

#[test]
fn passes_over_graphs_train_as_on_one_worker() {
    let recompute = Recompute::Full;
    for passes in [
        Passes { recompute, ..Passes::default() },
        Passes { recompute, hoist: Hoist::OnDemand, ..Passes::default() },
        Passes { split_backward: true, ..Passes::default() },
        Passes { recompute, hoist: Hoist::By(2), split_backward: true, ..Passes::default() },
    ] {
        for (n_stages, run) in runs() {
            for (name, graph) in &all(n_stages) {
                assert_equivalent(&Run { passes, ..run.clone() }, (name, graph));
            }
        }
    }
}

/// Without a border between steps, and in asynchronous windows, a graph trains like a chain of the
/// same order: every backward reads what its forward read.
#[test]
fn windows_of_graphs_train() {
    for (name, graph) in &all(4) {
        let free_border = Some(crate::training::N_STEPS as u32);
        let bound = Run { clip: None, ..Run::new("dapple", Shape::new(4, 6)) };
        let free = Run { passes: Passes { free_border, ..Passes::default() }, ..bound.clone() };
        assert_eq!(train(&free, graph).losses, train(&bound, graph).losses, "{name}");
        for schedule in ["pipedream", "pipedream-2bw"] {
            let shape = Shape { window: crate::training::N_STEPS as u32, ..Shape::new(4, 4) };
            let clip = None;
            let losses = train(&Run { clip, ..Run::new(schedule, shape) }, graph).losses;
            assert!(losses.iter().all(|loss| loss.is_finite()), "{name}: {losses:?}");
        }
    }
}

/// A message waits between its send and its receive. In a channel of its own, others can overtake
/// it.
#[test]
fn a_skip_has_a_channel_of_its_own() {
    let run = Run::new("dapple", Shape::new(4, 8));
    let program = lower(&timetable(&run, &skips(4)), &Lowering::default()).expect("proven");
    let skip = (StageId(0), StageId(3));
    let kinds = [TokenKind::Activation, TokenKind::Gradient].map(|kind| {
        let mut channels = program.channels().iter();
        channels.any(|channel| channel.edge == skip && channel.kind == kind)
    });
    assert_eq!(kinds, [true, true]);
    assert_eq!(program.n_messages(), (3 + 1) * 2 * 8);
    assert_eq!(program.channel_bound(), 2);
}

/// Each graph in the order of 1F1B: towers start together, all others run like a chain.
#[test]
fn drawings_of_graphs() {
    let drawn = all(6).map(|(name, graph)| {
        let run = Run::new("dapple", Shape::new(6, 4));
        let program = lower(&timetable(&run, &graph), &Lowering::default()).expect("proven");
        let timeline = simulate(&program, &UniformCosts::new(1.0, 2.0, 0.5));
        format!("{name}: {graph}\n{}", text::timeline(&timeline))
    });
    insta::assert_snapshot!("graphs", drawn.join("\n"));
}

/// A stage that does not fit its place is refused with an explanation.
#[test]
fn a_stage_of_a_chain_is_refused_at_a_join() {
    let run = Run::new("dapple", Shape::new(4, 4));
    let chain = StageGraph::chain(4);
    let stage = |id| Ok(crate::graphs::Linear(Node::of(&chain, id)));
    let refused = train_stages(&run, &timetable(&run, &skips(4)), &Pairs, stage);
    let refused = refused.expect_err("a stage of a chain").to_string();
    assert!(refused.contains("implement `forward_edges`"), "{refused}");
}
