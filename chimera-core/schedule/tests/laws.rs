//! Laws of every schedule and shape: proven, complete, exported and imported, and not shorter than
//! possible.

mod programs;

use std::collections::{HashMap, HashSet};

use chimera_schedule::analyze::{prove_in_one_order, simulate};
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::ids::{PipeId, WorkerId};
use chimera_schedule::interchange::{csv, from_csv, from_json, to_csv, to_json};
use chimera_schedule::lower::{Lowering, Sync, lower};
use chimera_schedule::op::{Cell, Kind, Op};
use chimera_schedule::program::{Instr, Program};
use chimera_schedule::schedule::{SCHEDULES, Scaling, Shape};
use chimera_schedule::timetable::Timetable;
use chimera_schedule::update::Update;
use programs::{makespan, program, timetable};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

fn schedules() -> impl Strategy<Value = (&'static str, Shape)> {
    let chimera = (1usize..=8, 1usize..=8, 1u32..=40, 0usize..3)
        .prop_filter("f divides D/2", |(half, f, ..)| half % f == 0)
        .prop_map(|(half, f, n, scaling)| {
            let scaling = Scaling::ALL[scaling].1;
            ("chimera", Shape { n_pipes: 2 * f, scaling, ..Shape::new(2 * half, n) })
        });
    let others = (
        prop::sample::select(vec!["gpipe", "gems", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min"]),
        1usize..=16,
        1u32..=40,
    )
        .prop_map(|(name, depth, n)| (name, Shape::new(depth, n)));
    let hanayo = (1usize..=8, 1u32..=20, 1usize..=5)
        .prop_map(|(depth, n, n_waves)| ("hanayo", Shape { n_waves, ..Shape::new(depth, n) }));
    let mixpipe = (1usize..=16, 1u32..=40, prop::option::of(1u32..=20))
        .prop_map(|(depth, n, in_flight)| ("mixpipe", Shape { in_flight, ..Shape::new(depth, n) }));
    let one_f_one_b = (1usize..=16, 1u32..=40, 1u32..=6)
        .prop_map(|(depth, n, n_in_turn)| ("1f1b", Shape { n_in_turn, ..Shape::new(depth, n) }));
    let sliced = (1usize..=16, 1u32..=20, 1u32..=8)
        .prop_map(|(depth, n, n_slices)| ("seq1f1b", Shape { n_slices, ..Shape::new(depth, n) }));
    let dual = (any::<bool>(), 1usize..=8, 0u32..=16).prop_map(|(is_folded, half, more)| {
        let n = 2 * half as u32 + more;
        if is_folded {
            ("dualpipe-v", Shape::new(half, n))
        } else {
            ("dualpipe", Shape::new(2 * half, 2 * n))
        }
    });
    let interleaved = (1usize..=8, 1u32..=5, 1usize..=4).prop_map(|(depth, k, n_chunks)| {
        ("interleaved", Shape { n_chunks, ..Shape::new(depth, k * depth as u32) })
    });
    let names = prop::sample::select(vec!["pipedream", "pipedream-2bw", "timeprest", "pipeoptim"]);
    let asynchronous = (names, 1usize..=8, 0u32..=8, 1u32..=4);
    let asynchronous = asynchronous.prop_map(|(name, depth, more, window)| {
        let n = if name == "pipedream-2bw" { depth as u32 + more } else { more + 1 };
        (name, Shape { window, ..Shape::new(depth, n) })
    });
    prop_oneof![
        chimera,
        others,
        one_f_one_b,
        sliced,
        interleaved,
        dual,
        hanayo,
        mixpipe,
        asynchronous
    ]
}

#[test]
fn every_schedule_of_the_table_is_drawn() {
    let mut runner = TestRunner::deterministic();
    let mut draw = || schedules().new_tree(&mut runner).expect("a draw").current().0;
    let drawn: HashSet<_> = (0..1000).map(|_| draw()).collect();
    assert_eq!(drawn, SCHEDULES.iter().map(|s| s.name()).collect());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Lowering proves: complete, no deadlock, ledgers empty, reductions in one order.
    #[test]
    fn every_shape_is_proven_under_every_policy((schedule, shape) in schedules()) {
        for (_, sync) in Sync::ALL {
            let program = program(schedule, &shape, sync);
            let bound = match schedule {
                "chimera" if shape.scaling != Scaling::Direct => 2,
                // Without a formula, they run whatever is ready.
                "hanayo" | "mixpipe" => 4,
                // A backward of all micro-batches sends as many gradients.
                "timeprest" => shape.n_micro_batches,
                _ => shape.n_in_turn,
            };
            prop_assert!(program.channel_bound() <= bound);
            if sync.has_one_order() {
                let order = prove_in_one_order(&program);
                prop_assert!(order.is_ok(), "{}", order.unwrap_err());
            }
            for (w, row) in program.rows().iter().enumerate() {
                let agrees = row.iter().filter(|i| matches!(i, Instr::Agree)).count();
                let steps = row.iter().filter(|i| matches!(i, Instr::Step(_))).count();
                prop_assert_eq!(agrees, 1);
                let n_stages = program.placement().stages_of(WorkerId(w as u16)).len();
                prop_assert_eq!(steps, n_stages * program.window().n_updates() as usize);
            }
        }
    }

    /// JSON holds every timetable. CSV holds every pipe of whole micro-batches, which is proven
    /// separately.
    #[test]
    fn what_is_exported_is_imported((schedule, shape) in schedules()) {
        let t = timetable(schedule, &shape);
        prop_assert_eq!(&from_json(to_json(&t).as_bytes()).expect("is read"), &t);
        for pipe in (0..t.placement.n_pipes()).map(|p| PipeId(p as u16)) {
            let Ok(csv) = to_csv(&t, pipe) else {
                let is_empty = csv::micro_batches(&t, pipe).is_empty();
                let is_other = t.units_per_micro > 1 || t.update != Update::Flush;
                prop_assert!(is_other || is_empty, "{} of {}", pipe, schedule);
                continue;
            };
            let read = from_csv(csv.as_bytes(), schedule).expect("is read");
            prop_assert_eq!(to_csv(&read, PipeId(0)).expect("is written"), csv);
            prop_assert_eq!(read.placement.pipes(), &t.placement.pipes()[pipe.index()..=pipe.index()]);
            prop_assert!(lower(&read, &Lowering::default()).is_ok());
            if t.placement.n_pipes() == 1 {
                prop_assert_eq!(&read, &t);
            }
        }
    }

    /// A step is never shorter than any worker's work, nor than one micro-batch's way there and
    /// back.
    #[test]
    fn the_makespan_is_bounded_below((schedule, shape) in schedules(), b in 1u32..=3) {
        let program = program(schedule, &shape, Sync::AtEnd);
        let (n, d, b) = (f64::from(program.n_micro_batches()), shape.depth as f64, f64::from(b));
        let units = f64::from(program.units_per_micro());
        let m = makespan(&program, 1.0, b);
        // On the way back only the input half of a split backward counts.
        let back = if splits_backwards(&program) { b / 2.0 } else { b / units };
        let there = 1.0 / f64::from(program.rules().n_slices());
        prop_assert!(m >= d * (there + back) - 1e-9);
        let chunks = program.placement().n_stages() as f64 / d;
        prop_assert!(m >= chunks * n * (1.0 + b) - 1e-9);
        let timeline = simulate(&program, &UniformCosts::new(1.0, b, 0.0).per_units(program.units_per_micro()));
        let path = timeline.critical_path();
        prop_assert!((path.iter().map(|e| e.end - e.start).sum::<f64>() - m).abs() < 1e-9);
    }

    /// Reversing the workers exchanges down and up pipes.
    #[test]
    fn chimera_is_its_own_mirror_image(f in 1usize..=4, per_pipe in 1usize..=4, units in 0u32..=3, part in 1u32..=4) {
        let depth = 2 * f * per_pipe;
        // Equal shares for all pipes: some full units and a part of one.
        let part = part.min(per_pipe as u32);
        let n = units * depth as u32 + 2 * f as u32 * part;
        for (_, scaling) in Scaling::ALL {
            if f > 1 && scaling != Scaling::Direct {
                continue; // several ops share a slot there, and their order is by pipe
            }
            let t = timetable("chimera", &Shape { n_pipes: 2 * f, scaling, ..Shape::new(depth, n) });
            let opposite = |p: PipeId| match p.index() {
                down if down < f => f + (f - down) % f,
                up => (f - (up - f)) % f,
            };
            for w in 0..depth {
                let here = numbered(&t, w, |p| p.index());
                let there = numbered(&t, depth - 1 - w, opposite);
                prop_assert_eq!(here, there, "worker {} of {:?}", w, t.placement);
            }
        }
    }
}

fn splits_backwards(program: &Program) -> bool {
    let is_half = |cell: &Cell| cell.ops().any(|op| op.kind == Kind::BackwardInput);
    program.rows().iter().flatten().any(|i| matches!(i, Instr::Run(cell) if is_half(cell)))
}

/// A worker's ops with micro-batches numbered within their pipe, and pipes renamed.
fn numbered(t: &Timetable, worker: usize, rename: impl Fn(PipeId) -> usize) -> Vec<String> {
    let mut first: HashMap<PipeId, Vec<u32>> = HashMap::new();
    for op in t.rows.iter().flatten().flat_map(|c| c.ops()) {
        first.entry(op.pipe).or_default().extend(op.span.units());
    }
    for units in first.values_mut() {
        units.sort_unstable();
        units.dedup();
    }
    let name = |op: Op| {
        let place = first[&op.pipe].iter().position(|u| *u == op.span.start);
        format!("{:?} {} {:?} {:?} {}", op.kind, rename(op.pipe), op.stage, place, op.span.len)
    };
    t.rows[worker].iter().flat_map(|c| c.ops()).map(name).collect()
}
