//! A damaged timetable is refused, and one that is not refused trains.

use std::collections::{HashMap, HashSet};

use chimera_schedule::costs::UniformCosts;
use chimera_schedule::lower::{Hoist, Lowering, Moves, Passes, Recompute, lower};
use chimera_schedule::op::{Cell, Kind, Op};
use chimera_schedule::schedule::{Scaling, Shape, find};
use chimera_schedule::timetable::Timetable;
use chimera_schedule::update::Update;
use proptest::prelude::*;

use crate::graphs::{Node, Pairs};
use crate::training::{Outcome, Run, train, train_stages, train_timetable};

/// One change of a timetable; indices are taken modulo the number of elements.
#[derive(Clone, Copy, Debug)]
enum Mutation {
    Swap(usize, usize, usize),
    Drop(usize, usize),
    Duplicate(usize, usize, usize),
    Move(usize, usize, usize, usize),
    Rename(usize, usize, u8),
}

impl Mutation {
    fn apply(self, t: &mut Timetable) {
        let n_rows = t.rows.len();
        match self {
            Mutation::Swap(w, i, j) => {
                let row = &mut t.rows[w % n_rows];
                let n = row.len();
                row.swap(i % n, j % n);
            }
            Mutation::Drop(w, i) => {
                let row = &mut t.rows[w % n_rows];
                row.remove(i % row.len());
            }
            Mutation::Duplicate(w, i, j) => {
                let row = &mut t.rows[w % n_rows];
                let cell = row[i % row.len()];
                row.insert(j % (row.len() + 1), cell);
            }
            Mutation::Move(w, i, to, j) => {
                let from = &mut t.rows[w % n_rows];
                let cell = from.remove(i % from.len());
                let to = &mut t.rows[to % n_rows];
                to.insert(j % (to.len() + 1), cell);
            }
            Mutation::Rename(w, i, what) => {
                let row = &mut t.rows[w % n_rows];
                let n = row.len();
                let (Cell::One(op) | Cell::Pair(_, op)) = &mut row[i % n];
                match what % 3 {
                    0 => op.stage.0 = (op.stage.0 + 1) % 5,
                    1 => op.pipe.0 = (op.pipe.0 + 1) % 3,
                    _ => op.span.start += 1,
                }
            }
        }
    }
}

fn mutations() -> impl Strategy<Value = Mutation> {
    let i = || 0usize..1000;
    prop_oneof![
        (i(), i(), i()).prop_map(|(w, a, b)| Mutation::Swap(w, a, b)),
        (i(), i()).prop_map(|(w, a)| Mutation::Drop(w, a)),
        (i(), i(), i()).prop_map(|(w, a, b)| Mutation::Duplicate(w, a, b)),
        (i(), i(), i(), i()).prop_map(|(w, a, to, b)| Mutation::Move(w, a, to, b)),
        (i(), i(), any::<u8>()).prop_map(|(w, a, what)| Mutation::Rename(w, a, what)),
    ]
}

fn asynchronous() -> impl Strategy<Value = (&'static str, Shape)> {
    let names = prop::sample::select(vec!["pipedream", "pipedream-2bw", "timeprest", "pipeoptim"]);
    (names, 1usize..=4, 0u32..=2, 1u32..=3).prop_map(|(name, depth, more, window)| {
        let n = if name == "pipedream-2bw" { depth as u32 + more } else { 1 + more };
        (name, Shape { window, ..Shape::new(depth, n) })
    })
}

fn shapes() -> impl Strategy<Value = (&'static str, Shape)> {
    let chimera = (1usize..=2, 1u32..=6, 0usize..3).prop_map(|(half, n, scaling)| {
        ("chimera", Shape { scaling: Scaling::ALL[scaling].1, ..Shape::new(2 * half, n) })
    });
    let others =
        (prop::sample::select(vec!["gpipe", "dapple", "gems", "zb-h2"]), 1usize..=4, 1u32..=5)
            .prop_map(|(name, depth, n)| (name, Shape::new(depth, n)));
    let dual = (1usize..=2, 0u32..=1).prop_map(|(half, more)| (half, 2 * half as u32 + more));
    let dual = (dual, any::<bool>()).prop_map(|((half, n), is_folded)| {
        if is_folded {
            ("dualpipe-v", Shape::new(half, n))
        } else {
            ("dualpipe", Shape::new(2 * half, 2 * n))
        }
    });
    prop_oneof![chimera, others, dual]
}

/// A sound timetable of a shape after the compute passes, for a chain or for the graph of this
/// number.
fn timetable(schedule: &str, shape: &Shape, by: Passes, graph: Option<usize>) -> Timetable {
    let mut whole = find(schedule).expect("known").timetable(shape).expect("fits");
    let n_stages = whole.placement.n_stages() as u16;
    if let Some(number) = graph.filter(|_| n_stages >= 4) {
        whole.graph = crate::graphs::all(n_stages)[number].1.clone();
    }
    by.apply(whole, &Lowering::default(), &UniformCosts::EQUAL).expect("sound")
}

/// Draws a chain as often as all graphs together.
fn any_graph() -> impl Strategy<Value = Option<usize>> {
    prop::option::of(0usize..4)
}

fn any_passes() -> impl Strategy<Value = Passes> {
    let recompute = prop::sample::select(vec![Recompute::None, Recompute::None, Recompute::Full]);
    let border = prop::option::weighted(0.3, 1u32..=3);
    let all = (recompute, 0usize..3, any::<bool>(), border);
    all.prop_map(|(recompute, cells, split_backward, free_border)| Passes {
        recompute,
        hoist: Hoist::By(cells),
        split_backward,
        free_border,
        moves: Moves::None,
    })
}

/// The rules a second time, in the simplest way: everything once and in its place, no row stuck,
/// and the messages between two stages of a pipe in one order.
fn is_sound(t: &Timetable) -> bool {
    let (n_stages, n_pipes) = (t.placement.n_stages(), t.placement.n_pipes());
    let mut counts: HashMap<(Kind, u32, usize), u32> = HashMap::new();
    let mut pipes: HashMap<u32, HashSet<u16>> = HashMap::new();
    for (w, row) in t.rows.iter().enumerate() {
        for op in row.iter().flat_map(|c| c.ops()) {
            let exists = op.stage.index() < n_stages
                && op.pipe.index() < n_pipes
                && op.span.units().end <= t.n_units();
            if !exists || t.placement.worker(op.pipe, op.stage).index() != w {
                return false;
            }
            for unit in op.span.units() {
                for pass in passes(op.kind) {
                    *counts.entry((*pass, unit, op.stage.index())).or_default() += 1;
                }
                pipes.entry(unit).or_default().insert(op.pipe.0);
            }
        }
    }
    let n_passes = 3 * t.n_units() as usize * n_stages;
    if counts.keys().filter(|(kind, ..)| *kind != Kind::Recompute).count() != n_passes
        || counts.values().any(|n| *n != 1)
        || pipes.values().any(|p| p.len() != 1)
    {
        return false;
    }
    flows(t) && keeps_order(t) && keeps_updates_apart(t)
}

/// Returns true if the gradients of an update are added before those of the next. In a double
/// buffer, gradients of a step come before the forwards of the step after the next, which read its
/// weights; with a free border, before those of the next step.
fn keeps_updates_apart(t: &Timetable) -> bool {
    let (per_update, lag) = match t.update {
        Update::Flush => return true,
        Update::EachStep { n_steps } => (t.n_units() / n_steps, 1),
        Update::Stash { .. } | Update::Predicted { .. } => (1, u32::MAX),
        Update::Newest { n_steps } => (t.n_units() / n_steps, u32::MAX),
        Update::DoubleBuffer { n_steps } => (t.n_units() / n_steps, 2),
    };
    let pipes = t.placement.pipes().iter();
    let mut held = pipes.flat_map(|pipe| pipe.iter().copied().enumerate());
    held.all(|(s, worker)| {
        let row = t.row(worker).iter().flat_map(|c| c.ops());
        let ops: Vec<(Kind, u32)> = row
            .filter(|op| op.stage.index() == s)
            .map(|op| (op.kind, op.span.start / per_update))
            .collect();
        ops.iter().enumerate().all(|(at, (kind, update))| {
            let mut later = ops[at..].iter().filter(|(kind, _)| kind.adds_gradient());
            later.all(|(_, other)| match kind {
                kind if kind.adds_gradient() => other >= update,
                Kind::Forward => update < &lag || *other > update - lag,
                _ => true,
            })
        })
    })
}

/// The halves of a pass: a whole backward has both.
fn passes(kind: Kind) -> &'static [Kind] {
    match kind {
        Kind::Forward => &[Kind::Forward],
        Kind::Backward => &[Kind::BackwardInput, Kind::BackwardWeight],
        Kind::BackwardInput => &[Kind::BackwardInput],
        Kind::BackwardWeight => &[Kind::BackwardWeight],
        Kind::Recompute => &[Kind::Recompute],
        unknown => panic!("{unknown:?} has no rule here"),
    }
}

/// Runs every cell as soon as its inputs exist, until nothing moves. With a free border a forward
/// also needs the gradients of the step before, of all micro-batches and workers.
fn flows(t: &Timetable) -> bool {
    let per_step = match t.update {
        Update::EachStep { n_steps } => t.n_units() / n_steps,
        _ => t.n_units(),
    };
    let loss = t.graph.loss();
    let ops = || t.rows.iter().flatten().flat_map(|c| c.ops());
    let recomputed: HashSet<_> =
        ops().filter(|op| op.kind == Kind::Recompute).map(|op| (op.pipe, op.stage)).collect();
    let mut done: HashSet<(Kind, u32, usize)> = HashSet::new();
    let mut spans: HashMap<(usize, u32), u16> = HashMap::new();
    let mut next = vec![0; t.rows.len()];
    loop {
        let before = done.len();
        for (w, row) in t.rows.iter().enumerate() {
            while let Some(cell) = row.get(next[w]) {
                let ready = cell.ops().all(|op| {
                    let s = op.stage.index();
                    let (inputs, outputs) = (t.graph.inputs(op.stage), t.graph.outputs(op.stage));
                    op.span.units().all(|u| match op.kind {
                        Kind::Forward => {
                            let step = u / per_step * per_step;
                            let before = step.saturating_sub(per_step)..step;
                            inputs.iter().all(|from| {
                                spans.get(&(from.index(), op.span.start)) == Some(&op.span.len)
                            }) && before
                                .into_iter()
                                .all(|u| done.contains(&(Kind::BackwardWeight, u, s)))
                        }
                        Kind::Recompute => done.contains(&(Kind::Forward, u, s)),
                        Kind::BackwardWeight => done.contains(&(Kind::BackwardInput, u, s)),
                        _ => {
                            let saves = if recomputed.contains(&(op.pipe, op.stage)) {
                                Kind::Recompute
                            } else {
                                Kind::Forward
                            };
                            let has = |to| done.contains(&(Kind::BackwardInput, u, to));
                            let stages = outputs.iter().filter(|to| **to != loss);
                            done.contains(&(saves, u, s))
                                && stages.copied().all(|to| has(to.index()))
                        }
                    })
                });
                if !ready {
                    break;
                }
                for op in cell.ops() {
                    let s = op.stage.index();
                    if op.kind == Kind::Forward {
                        spans.insert((s, op.span.start), op.span.len);
                    }
                    for pass in passes(op.kind) {
                        done.extend(op.span.units().map(|u| (*pass, u, s)));
                    }
                }
                next[w] += 1;
            }
        }
        if done.len() == before {
            return next.iter().zip(&t.rows).all(|(n, row)| *n == row.len());
        }
    }
}

/// Returns true if forwards reach the two workers of an edge in the same order, and backwards too.
fn keeps_order(t: &Timetable) -> bool {
    let order = |kind: Kind, pipe: u16, stage: usize| -> Vec<u32> {
        let of = |op: &Op| {
            passes(op.kind).contains(&kind) && op.pipe.0 == pipe && op.stage.index() == stage
        };
        let ops = t.rows.iter().flatten().flat_map(|c| c.ops()).filter(of);
        ops.flat_map(|op| op.span.units()).collect()
    };
    (0..t.placement.n_pipes() as u16).all(|pipe| {
        t.graph.edges().all(|(from, to)| {
            let (from, to) = (from.index(), to.index());
            let workers = &t.placement.pipes()[usize::from(pipe)];
            workers[from] == workers[to]
                || [Kind::Forward, Kind::BackwardInput]
                    .iter()
                    .all(|kind| order(*kind, pipe, from) == order(*kind, pipe, to))
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn the_checker_refuses_exactly_what_is_unsound(
        (schedule, shape, by) in prop_oneof![
            3 => (shapes(), any_passes()).prop_map(|((schedule, shape), by)| (schedule, shape, by)),
            1 => asynchronous().prop_map(|(schedule, shape)| (schedule, shape, Passes::default())),
        ],
        graph in any_graph(),
        mutations in prop::collection::vec(mutations(), 1..=2),
    ) {
        let mut t = timetable(schedule, &shape, by, graph);
        prop_assert!(is_sound(&t));
        for mutation in mutations {
            if t.rows.iter().all(|row| row.len() > 1) {
                mutation.apply(&mut t);
            }
        }
        let lowered = lower(&t, &Lowering::default());
        match &lowered {
            Ok(_) => prop_assert!(is_sound(&t), "accepted: {:?}", t.rows),
            Err(refusal) => prop_assert!(!is_sound(&t), "{}\n{:?}", refusal, t.rows),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Swapped neighbours often leave a sound timetable.
    #[test]
    fn what_is_accepted_trains_to_the_same_losses(
        (schedule, shape) in shapes(),
        by in any_passes(),
        (w, i) in (0usize..8, 0usize..64),
    ) {
        let mut t = timetable(schedule, &shape, by, None);
        Mutation::Swap(w, i, i + 1).apply(&mut t);
        prop_assume!(lower(&t, &Lowering::default()).is_ok());
        let run = Run::new(schedule, shape);
        let (moved, plain) = (train_timetable(&run, &t), train(&run));
        let (moved, plain) = (moved.expect("trains").losses, plain.expect("trains").losses);
        for (a, b) in moved.iter().zip(&plain) {
            prop_assert!((a - b).abs() <= 1e-5 * b.abs(), "{:?} {:?}", moved, plain);
        }
    }
}

/// Every tensor has the same gradient after every program, up to rounding.
fn have_same_gradients(edited: &Outcome, plain: &Outcome) -> Result<(), TestCaseError> {
    prop_assert!(edited.gradients.keys().eq(plain.gradients.keys()));
    for (name, values) in &edited.gradients {
        let expected = &plain.gradients[name];
        let size = expected.iter().fold(1e-9, |most: f64, x| most.max(x.abs()));
        for (a, b) in values.iter().zip(expected) {
            prop_assert!((a - b).abs() <= 1e-12 * size, "{:?}: {} for {}", name, a, b);
        }
    }
    Ok(())
}

/// Schedules of four or eight stages on four workers.
const GRAPHED: [&str; 8] =
    ["gpipe", "dapple", "chimera", "gems", "zb-h1", "zb-h2", "hanayo", "zb-v"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// A graph whose timetable is edited once is refused, or trains to the gradients of the whole
    /// model.
    #[test]
    fn a_graph_is_refused_or_trains_to_the_same_gradients(
        (schedule, n) in (prop::sample::select(GRAPHED.to_vec()), 1u32..=4),
        by in any_passes(),
        graph in 0usize..4,
        mutation in prop_oneof![
            mutations(),
            (0usize..8, 0usize..64).prop_map(|(w, i)| Mutation::Swap(w, i, i + 1)),
        ],
    ) {
        let shape = Shape { n_waves: 1, ..Shape::new(4, 2 * n) };
        let plain = timetable(schedule, &shape, by, Some(graph));
        let mut edited = plain.clone();
        mutation.apply(&mut edited);
        if lower(&edited, &Lowering::default()).is_err() {
            return Ok(());
        }
        let run = Run { clip: None, ..Run::new(schedule, shape) };
        let train = |t: &Timetable| -> Outcome {
            train_stages(&run, t, &Pairs, |id| Ok(Node::of(&t.graph, id))).expect("trains")
        };
        let (edited, plain) = (train(&edited), train(&plain));
        have_same_gradients(&edited, &plain)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// Slices of sequences whose timetable is edited once are refused, or train to the same
    /// gradients.
    #[test]
    fn slices_are_refused_or_train_to_the_same_gradients(
        (depth, n, n_slices) in (1usize..=3, 1u32..=3, 2u32..=4),
        by in any_passes(),
        mutation in prop_oneof![
            mutations(),
            (0usize..8, 0usize..64).prop_map(|(w, i)| Mutation::Swap(w, i, i + 1)),
        ],
    ) {
        let shape = Shape { n_slices, ..Shape::new(depth, n) };
        let plain = timetable("seq1f1b", &shape, by, None);
        let mut edited = plain.clone();
        mutation.apply(&mut edited);
        if lower(&edited, &Lowering::default()).is_err() {
            return Ok(());
        }
        let run = Run { clip: None, ..Run::new("seq1f1b", shape) };
        let [edited, plain] = [edited, plain].map(|t| train_timetable(&run, &t).expect("trains"));
        have_same_gradients(&edited, &plain)?;
    }
}
