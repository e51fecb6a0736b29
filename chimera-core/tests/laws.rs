//! What holds for every schedule and shape: proven, complete, and as long and as large as published.

use std::collections::{HashMap, HashSet};

use chimera_core::analyze::{
    Costs, Event, Timeline, UniformCosts, Work, prove_in_one_order, simulate,
};
use chimera_core::exchange::{csv, from_csv, from_json, to_csv, to_json};
use chimera_core::ids::{PipeId, WorkerId};
use chimera_core::lower::{Instr, Lowering, Program, Sync, lower};
use chimera_core::op::{Cell, Kind, Op};
use chimera_core::schedule::{SCHEDULES, Scaling, Shape, find};
use chimera_core::timetable::Timetable;
use chimera_core::update::Update;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

fn timetable(schedule: &str, shape: &Shape) -> Timetable {
    find(schedule).expect("known").timetable(shape).unwrap_or_else(|unfit| panic!("{unfit}"))
}

fn program(schedule: &str, shape: &Shape, sync: Sync) -> Program {
    let how = Lowering { sync, ..Lowering::default() };
    lower(&timetable(schedule, shape), &how).unwrap_or_else(|e| panic!("{shape:?}: {e}"))
}

fn makespan(program: &Program, forward: f64, backward: f64) -> f64 {
    let costs = UniformCosts::new(forward, backward, 0.0);
    simulate(program, &costs.per_units(program.units_per_micro())).makespan()
}

fn peaks(program: &Program) -> (f64, f64) {
    let peaks = program.peaks().iter().copied();
    (peaks.clone().fold(f64::INFINITY, f64::min), peaks.fold(0.0, f64::max))
}

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
    let dapple = (1usize..=16, 1u32..=40, 1u32..=6)
        .prop_map(|(depth, n, n_in_turn)| ("dapple", Shape { n_in_turn, ..Shape::new(depth, n) }));
    let dual = (any::<bool>(), 1usize..=8, 0u32..=16).prop_map(|(is_folded, half, more)| {
        let n = 2 * half as u32 + more;
        match is_folded {
            false => ("dualpipe", Shape::new(2 * half, 2 * n)),
            true => ("dualpipe-v", Shape::new(half, n)),
        }
    });
    let interleaved = (1usize..=8, 1u32..=5, 1usize..=4).prop_map(|(depth, k, n_chunks)| {
        ("interleaved", Shape { n_chunks, ..Shape::new(depth, k * depth as u32) })
    });
    let asynchronous = (any::<bool>(), 1usize..=8, 0u32..=8, 1u32..=4);
    let asynchronous = asynchronous.prop_map(|(double, depth, more, window)| {
        let (name, n) =
            if double { ("pipedream-2bw", depth as u32 + more) } else { ("pipedream", more + 1) };
        (name, Shape { window, ..Shape::new(depth, n) })
    });
    prop_oneof![chimera, others, dapple, interleaved, dual, hanayo, mixpipe, asynchronous]
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
                // No formula: they do whatever is ready.
                "hanayo" | "mixpipe" => 4,
                _ => shape.n_in_turn,
            };
            prop_assert!(program.channel_bound() <= bound);
            let order = prove_in_one_order(&program);
            prop_assert!(order.is_ok(), "{}", order.unwrap_err());
            for (w, row) in program.rows().iter().enumerate() {
                let agrees = row.iter().filter(|i| matches!(i, Instr::Agree)).count();
                let steps = row.iter().filter(|i| matches!(i, Instr::Step(_))).count();
                prop_assert_eq!(agrees, 1);
                let n_stages = program.placement().stages_of(WorkerId(w as u16)).len();
                prop_assert_eq!(steps, n_stages * program.window().n_updates() as usize);
            }
        }
    }

    /// JSON holds every timetable; CSV every pipe of whole micro-batches, and is proven by itself.
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

    /// A step is never shorter than any worker's work, nor than one micro-batch's way there and back.
    #[test]
    fn the_makespan_is_bounded_below((schedule, shape) in schedules(), b in 1u32..=3) {
        let program = program(schedule, &shape, Sync::AtEnd);
        let (n, d, b) = (f64::from(program.n_micro_batches()), shape.depth as f64, f64::from(b));
        let units = f64::from(program.units_per_micro());
        let m = makespan(&program, 1.0, b);
        // Only the input half of a split backward stands in the way back.
        let back = if splits_backwards(&program) { b / 2.0 } else { b / units };
        prop_assert!(m >= d * (1.0 + back) - 1e-9);
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

#[test]
fn baselines_have_their_closed_forms() {
    for d in 1..=16 {
        for n in 1..=40 {
            let shape = Shape::new(d, n);
            let (df, nf) = (d as f64, f64::from(n));
            let gpipe = program("gpipe", &shape, Sync::AtEnd);
            assert_eq!(makespan(&gpipe, 1.0, 2.0), 3.0 * (nf + df - 1.0), "gpipe {d} {n}");
            assert_eq!(peaks(&gpipe), (nf, nf));
            let dapple = program("dapple", &shape, Sync::AtEnd);
            assert_eq!(makespan(&dapple, 1.0, 2.0), 3.0 * (nf + df - 1.0), "dapple {d} {n}");
            let want: Vec<f64> = (0..d).map(|s| ((d - s) as f64).min(nf)).collect();
            assert_eq!(dapple.peaks(), want);
            let bubble = simulate(&dapple, &UniformCosts::EQUAL).bubble_ratio();
            assert!((bubble - (df - 1.0) / (nf + df - 1.0)).abs() < 1e-12);
            let gems = program("gems", &shape, Sync::AtEnd);
            assert_eq!(
                makespan(&gems, 1.0, 2.0),
                3.0 * df + (nf - 1.0) * (2.0 * df + 1.0),
                "gems {d} {n}"
            );
            assert_eq!(peaks(&gems), (1.0, 1.0));
        }
    }
}

/// A chunk costs one forward here, so that a worker's pass through its v chunks costs v.
#[test]
fn interleaved_has_its_closed_form() {
    for d in 1..=8 {
        for n in (1..=5).map(|k| k * d as u32) {
            for n_chunks in 1..=4 {
                let shape = Shape { n_chunks, ..Shape::new(d, n) };
                let (df, nf, v) = (d as f64, f64::from(n), n_chunks as f64);
                let p = program("interleaved", &shape, Sync::AtEnd);
                let want = v * 3.0 * nf + 3.0 * (df - 1.0);
                assert_eq!(makespan(&p, 1.0, 2.0), want, "D={d} N={n} v={n_chunks}");
            }
        }
    }
}

#[test]
fn zb_h1_has_its_closed_forms() {
    for d in 1..=16 {
        for n in 1..=40 {
            let (df, nf) = (d as f64, f64::from(n));
            let p = program("zb-h1", &Shape::new(d, n), Sync::AtEnd);
            let want = if nf >= df { 3.0 * nf + df - 1.0 } else { 2.0 * df + 2.0 * nf - 1.0 };
            assert_eq!(makespan(&p, 1.0, 2.0), want, "D={d} N={n}");
            assert_eq!(peaks(&p).1, df.min(nf), "D={d} N={n}");
        }
    }
}

/// Groups of k micro-batches (kFkB) cost residuals and room in the channels, and where messages
/// are free gain nothing.
#[test]
fn dapple_by_groups_has_its_closed_forms() {
    for d in 1..=10 {
        for n in 1..=30 {
            for n_in_turn in [2, 3, 5, 8, 31] {
                let p = program("dapple", &Shape { n_in_turn, ..Shape::new(d, n) }, Sync::AtEnd);
                let at = format!("D={d} N={n} k={n_in_turn}");
                assert_eq!(makespan(&p, 1.0, 2.0), 3.0 * (f64::from(n) + d as f64 - 1.0), "{at}");
                let peak = |s| f64::from((n_in_turn * (d - s) as u32).min(n));
                assert_eq!(p.peaks(), (0..d).map(peak).collect::<Vec<_>>(), "{at}");
                if d > 1 {
                    let ahead = n.saturating_sub(n_in_turn).clamp(1, n_in_turn);
                    assert_eq!(p.channel_bound(), ahead, "{at}");
                }
            }
        }
    }
}

#[test]
fn zb_h2_has_its_closed_forms() {
    for d in 1..=12 {
        for n in 1..=40u32 {
            let p = program("zb-h2", &Shape::new(d, n), Sync::AtEnd);
            let (others, nf) = (d as u32 - 1, f64::from(n));
            let want = 3 * n + 2 * others - (n / 2).min(others);
            assert_eq!(makespan(&p, 1.0, 2.0), f64::from(want), "D={d} N={n}");
            let peak = nf.min(f64::from(2 * others + 1));
            assert_eq!(peaks(&p), (peak, peak), "D={d} N={n}");
            if n > 2 * others {
                let timeline = simulate(&p, &UniformCosts::new(1.0, 2.0, 0.0));
                assert_eq!(spans(&timeline), vec![3.0 * nf; d], "D={d} N={n}");
            }
        }
    }
}

/// A chunk's F, b and w cost 1 each here, so that a worker's share of a micro-batch costs 6.
#[test]
fn zb_v_has_its_closed_forms() {
    for d in 1..=16 {
        for n in d as u32..=40 {
            let p = program("zb-v", &Shape::new(d, n), Sync::AtEnd);
            let timeline = simulate(&p, &UniformCosts::new(1.0, 2.0, 0.0));
            let (df, nf) = (d as f64, f64::from(n));
            assert_eq!(timeline.makespan(), 6.0 * nf + df - 1.0, "D={d} N={n}");
            assert!(peaks(&p).1 <= df, "D={d} N={n}: {:?}", p.peaks());
            // From N = 2D-1 on nobody waits from its first op to its last.
            let span = 6.0 * nf + (2.0 * df - 1.0 - nf).max(0.0);
            let longest = spans(&timeline).into_iter().fold(0.0, f64::max);
            assert_eq!(longest, span, "D={d} N={n}");
        }
    }
}

#[test]
fn the_vs_hold_no_more_than_they_promise() {
    for d in 1..=16 {
        for n in 1..=40 {
            for (schedule, most) in [("zb-v", d), ("v-half", (d + 2) / 2), ("v-min", (d + 4) / 3)] {
                let p = program(schedule, &Shape::new(d, n), Sync::AtEnd);
                assert!(peaks(&p).1 <= most as f64, "{schedule} D={d} N={n}: {:?}", p.peaks());
            }
        }
    }
}

/// Its chunks are half as long as the stages of a pipeline of the same depth.
#[test]
fn hanayo_with_one_wave_is_chimera_on_twice_the_stages() {
    for d in 1..=8 {
        for n in (2..=2 * d as u32).step_by(2) {
            let shape = Shape { n_waves: 1, ..Shape::new(d, n / 2) };
            let hanayo = program("hanayo", &shape, Sync::AtEnd);
            let chimera = program("chimera", &Shape::new(2 * d, n), Sync::AtEnd);
            assert_eq!(makespan(&hanayo, 1.0, 2.0), makespan(&chimera, 1.0, 2.0), "D={d} N={n}");
        }
    }
}

#[test]
fn hanayo_holds_twice_what_1f1b_does_at_most() {
    for d in 1..=8 {
        for n in 1..=40 {
            for n_waves in 1..=4 {
                let shape = Shape { n_waves, ..Shape::new(d, n) };
                let p = program("hanayo", &shape, Sync::AtEnd);
                let most = f64::from(n).min(2.0 * d as f64 - 1.0);
                assert!(peaks(&p).1 <= most, "D={d} N={n}, {n_waves} waves: {:?}", p.peaks());
            }
        }
    }
}

#[test]
fn mixpipe_keeps_to_what_may_be_in_flight() {
    for d in 1..=10 {
        for n in 1..=24 {
            for k in [1, 2, 3, 5, 12] {
                let shape = Shape { in_flight: Some(k), ..Shape::new(d, n) };
                let p = program("mixpipe", &shape, Sync::AtEnd);
                let most = (2.0 * f64::from(k)).min((d as f64).max((1.5 * f64::from(k)).floor()));
                assert!(peaks(&p).1 <= most, "D={d} N={n} K={k}: {:?}", p.peaks());
            }
        }
    }
}

/// From the start of each worker's first op to the end of its last.
fn spans(timeline: &Timeline) -> Vec<f64> {
    let mut spans = vec![(f64::INFINITY, 0.0); timeline.n_workers];
    for event in &timeline.events {
        let (start, end) = &mut spans[event.worker.index()];
        (*start, *end) = (event.start.min(*start), event.end.max(*end));
    }
    spans.iter().map(|(start, end)| end - start).collect()
}

/// F = b = w = 1, and a pair whatever its overlap leaves.
struct Overlapped {
    pair: f64,
}

impl Costs for Overlapped {
    fn op(&self, worker: WorkerId, op: &Op) -> f64 {
        UniformCosts::new(1.0, 2.0, 0.0).op(worker, op)
    }

    fn pair(&self, _: WorkerId, _: &Op, _: &Op) -> f64 {
        self.pair
    }
}

/// DualPipe, and DualPipeV on half as many workers with half as many micro-batches of twice the chunks.
#[test]
fn dualpipe_has_its_closed_forms() {
    for half in 1..=8 {
        for n in 2 * half..=4 * half + 1 {
            let plain = program("dualpipe", &Shape::new(2 * half, 2 * n as u32), Sync::AtEnd);
            let folded = program("dualpipe-v", &Shape::new(half, n as u32), Sync::AtEnd);
            let (work, peak) = (6.0 * n as f64, 2.0 * half as f64 + 1.0);
            assert_eq!(peaks(&plain), (peak, peak), "D={} N={}", 2 * half, 2 * n);
            assert_eq!(peaks(&folded), (peak / 2.0, peak / 2.0), "D={half} N={n}");
            for pair in [2.0, 2.5, 3.0, 4.0] {
                let bubble = (half as f64 - 1.0) * (pair + 2.0 - 3.0);
                for p in [&plain, &folded] {
                    let timeline = simulate(p, &Overlapped { pair });
                    let idle: Vec<f64> =
                        timeline.busy().iter().map(|busy| timeline.makespan() - busy).collect();
                    // The published bubble is that of the middle workers; where a pair costs as much
                    // as its ops, all have the same.
                    assert_eq!(idle[half - 1], bubble, "{} {half} {n} {pair}", p.schedule());
                    if pair == 3.0 {
                        assert_eq!(idle, vec![bubble; idle.len()], "{} {half} {n}", p.schedule());
                        assert_eq!(timeline.makespan(), work + bubble);
                    }
                }
            }
        }
    }
}

/// Workers idle only while the window fills and drains, however many steps it has, and keep no more
/// versions of the weights than published.
#[test]
fn asynchronous_schedules_have_no_bubble_inside_a_window() {
    for d in 1..=8 {
        for (n, window) in [(d, 1), (d, 4), (d + 1, 3), (3 * d, 2), (2, 5)] {
            for schedule in ["pipedream", "pipedream-2bw"] {
                if schedule == "pipedream-2bw" && n < d {
                    continue;
                }
                let p =
                    program(schedule, &Shape { window, ..Shape::new(d, n as u32) }, Sync::AtEnd);
                let what = format!("{schedule} D={d} N={n} T={window}");
                let (df, total) = (d as f64, n as f64 * f64::from(window));
                let timeline = simulate(&p, &UniformCosts::new(1.0, 2.0, 0.0));
                assert_eq!(timeline.makespan(), 3.0 * (total + df - 1.0), "{what}");
                for (w, busy) in timeline.busy().into_iter().enumerate() {
                    let row: Vec<_> = timeline.row(WorkerId(w as u16)).collect();
                    let span = row[row.len() - 1].end - row[0].start;
                    // 1F1B waits D-1-w times before its first backwards and after its last forwards.
                    assert!(span - busy <= 3.0 * (df - 1.0 - w as f64), "{what}, worker {w}");
                    let is = |kind: Kind| {
                        let of = move |op: Op| op.kind == kind;
                        move |e: &&Event| matches!(e.work, Work::Cell(cell) if cell.ops().any(of))
                    };
                    let first = row.iter().position(is(Kind::Backward)).expect("a backward");
                    let last = row.iter().rposition(is(Kind::Forward)).expect("a forward");
                    for pair in row.get(first..=last).unwrap_or_default().windows(2) {
                        assert_eq!(pair[0].end, pair[1].start, "{what}, worker {w}");
                    }
                }
                let in_flight = |w: usize| ((d - w) as f64).min(total);
                assert_eq!(p.peaks(), (0..d).map(in_flight).collect::<Vec<_>>(), "{what}");
                for (w, &versions) in p.weight_versions().iter().enumerate() {
                    let what = format!("{what}: worker {w} holds {versions}");
                    let most = if schedule == "pipedream" { (d - w) as u32 } else { window.min(2) };
                    assert!(versions <= most, "{what}");
                    // Shorter windows drain before a worker has read all the versions it could hold.
                    let is_long = schedule != "pipedream" || total as usize >= 2 * (d - w) - 2;
                    assert!(versions == most || !is_long, "{what}");
                }
            }
        }
    }
}

/// Chimera for N = D with 2f pipes (schedules of the paper's figures 3 and 8).
#[test]
fn chimera_of_one_unit_has_its_closed_forms() {
    for d in (2..=16).step_by(2) {
        for f in (1..=d / 2).filter(|f| (d / 2) % f == 0) {
            let p = program(
                "chimera",
                &Shape { n_pipes: 2 * f, ..Shape::new(d, d as u32) },
                Sync::AtEnd,
            );
            let (df, ff) = (d as f64, f as f64);
            assert_eq!(makespan(&p, 1.0, 1.0), 2.0 * df + df / ff - 2.0, "D={d} f={f}");
            for b in [1.0, 1.5, 2.0, 3.0] {
                assert_eq!(
                    makespan(&p, 1.0, b),
                    df * (1.0 + b) + (df / ff - 2.0) * b,
                    "D={d} f={f} B={b}"
                );
            }
            assert_eq!(peaks(&p), (df - df / (2.0 * ff) + 1.0, df), "D={d} f={f}");
            let equal = simulate(&p, &UniformCosts::EQUAL).bubble_ratio();
            assert!((equal - (df - 2.0 * ff) / (2.0 * ff * df + df - 2.0 * ff)).abs() < 1e-12);
            if f == 1 {
                let each: Vec<f64> =
                    (0..d).map(|w| (w.min(d - 1 - w) + d / 2 + 1) as f64).collect();
                assert_eq!(p.peaks(), each);
                let b2 = simulate(&p, &UniformCosts::new(1.0, 2.0, 0.0)).bubble_ratio();
                assert!((b2 - (df - 2.0) / (1.5 * df + df - 2.0)).abs() < 1e-12);
            }
        }
    }
}

#[test]
fn chimera_of_few_micro_batches_has_its_closed_forms() {
    for d in (2..=16).step_by(2) {
        for n in 1..=d as u32 {
            let p = program("chimera", &Shape::new(d, n), Sync::AtEnd);
            let pairs = f64::from(n.div_ceil(2));
            assert_eq!(makespan(&p, 1.0, 1.0), 2.0 * d as f64 - 2.0 + 2.0 * pairs, "D={d} N={n}");
            assert_eq!(makespan(&p, 1.0, 2.0), 3.0 * d as f64 + 4.0 * (pairs - 1.0), "D={d} N={n}");
        }
    }
}

#[test]
fn chimera_of_many_units_has_its_closed_forms() {
    for d in (2..=16).step_by(2) {
        for k in 1..=6 {
            let n = (k * d) as u32;
            let of =
                |scaling| program("chimera", &Shape { scaling, ..Shape::new(d, n) }, Sync::AtEnd);
            let (df, nf, kf) = (d as f64, f64::from(n), k as f64);
            let (direct, doubling, halving) =
                (of(Scaling::Direct), of(Scaling::Doubling), of(Scaling::Halving));
            assert_eq!(makespan(&direct, 1.0, 1.0), 2.0 * nf + df - 2.0);
            assert_eq!(
                makespan(&direct, 1.0, 2.0),
                3.0 * nf + 2.0 * (df - 2.0) + (kf - 1.0) * (df - 2.0)
            );
            assert_eq!(direct.peaks(), of(Scaling::Direct).peaks());
            assert_eq!((direct.channel_bound(), halving.channel_bound()), (1, 1));
            let tail = match k {
                1 => 2.0 * (df - 2.0),
                k if k % 2 == 0 => 3.0 * (df / 2.0 - 1.0),
                _ => 3.0 * (df / 2.0 - 1.0) + df - 2.0,
            };
            assert_eq!(makespan(&doubling, 1.0, 2.0), 3.0 * nf + tail, "doubling D={d} K={k}");
            if k > 1 {
                assert_eq!(peaks(&doubling), (1.5 * df + 1.0, 2.0 * df), "doubling D={d} K={k}");
                assert_eq!(doubling.channel_bound(), 2);
            }
            assert_eq!(makespan(&halving, 1.0, 2.0), 3.0 * nf + df - 2.0, "halving D={d} K={k}");
            assert_eq!(peaks(&halving), ((1.5 * df + 1.0) / 2.0, df), "halving D={d} K={k}");
        }
    }
}

/// The values that schedule designers quote.
#[test]
fn quoted_values() {
    let chimera =
        |d, n, scaling| program("chimera", &Shape { scaling, ..Shape::new(d, n) }, Sync::AtEnd);
    let b2 = |d, n, scaling| makespan(&chimera(d, n, scaling), 1.0, 2.0);
    assert_eq!(
        [b2(4, 4, Scaling::Direct), b2(6, 6, Scaling::Direct), b2(8, 8, Scaling::Direct)],
        [16.0, 26.0, 36.0]
    );
    assert_eq!(
        [b2(4, 8, Scaling::Direct), b2(4, 16, Scaling::Direct), b2(8, 16, Scaling::Direct)],
        [30.0, 58.0, 66.0]
    );
    assert_eq!(
        [b2(4, 8, Scaling::Doubling), b2(4, 16, Scaling::Doubling), b2(8, 16, Scaling::Doubling)],
        [27.0, 51.0, 57.0]
    );
    assert_eq!(b2(4, 12, Scaling::Doubling), 41.0);
    assert_eq!(
        [b2(4, 4, Scaling::Halving), b2(4, 8, Scaling::Halving), b2(8, 16, Scaling::Halving)],
        [14.0, 26.0, 54.0]
    );
    let pipes = |n_pipes| {
        makespan(&program("chimera", &Shape { n_pipes, ..Shape::new(8, 8) }, Sync::AtEnd), 1.0, 2.0)
    };
    assert_eq!([pipes(2), pipes(4), pipes(8)], [36.0, 28.0, 24.0]);
    let dualpipe = |d, n| makespan(&program("dualpipe", &Shape::new(d, n), Sync::AtEnd), 1.0, 2.0);
    assert_eq!([dualpipe(4, 8), dualpipe(8, 20)], [26.0, 66.0]);
    let of = |schedule, shape| {
        let p = program(schedule, &shape, Sync::AtEnd);
        (makespan(&p, 1.0, 2.0), peaks(&p).1)
    };
    // In times of a chunk, of which a worker's stage has two; with W waves 2W.
    assert_eq!(of("v-min", Shape::new(4, 8)), (59.0, 2.0));
    assert_eq!(of("v-half", Shape::new(4, 8)), (53.0, 3.0));
    assert_eq!(of("zb-v", Shape::new(4, 8)), (51.0, 4.0));
    assert_eq!(
        ["v-min", "v-half", "zb-v"].map(|s| of(s, Shape::new(4, 16)).0),
        [107.0, 101.0, 99.0]
    );
    let hanayo = |n_waves| of("hanayo", Shape { n_waves, ..Shape::new(4, 4) }).0;
    assert_eq!([1, 2, 4].map(hanayo), [36.0, 61.0, 109.0]);
    let mixpipe = |d, n, k| of("mixpipe", Shape { in_flight: Some(k), ..Shape::new(d, n) });
    // Without the squeeze 65, 55 and 110.
    assert_eq!(mixpipe(8, 16, 5), (62.0, 8.0));
    assert_eq!(mixpipe(4, 16, 3), (52.0, 4.0));
    assert_eq!(mixpipe(8, 32, 8), (106.0, 12.0));
    assert_eq!(makespan(&apart("dualpipe", &Shape::new(8, 20)), 1.0, 2.0), 63.0);
}

/// The program of a schedule whose pairs are taken apart.
fn apart(schedule: &str, shape: &Shape) -> Program {
    let mut t = timetable(schedule, shape);
    for row in &mut t.rows {
        *row = row.iter().flat_map(Cell::ops).map(Cell::One).collect();
    }
    lower(&t, &Lowering::default()).expect("proven")
}

/// Early reductions go where idle time follows: for f = 1 and N = D, to the stages above D/2.
#[test]
fn eager_opt_starts_early_only_where_idle_time_follows() {
    for d in [4usize, 8, 12] {
        let p = program("chimera", &Shape::new(d, d as u32), Sync::EagerOpt);
        for row in p.rows() {
            let last_run = row.iter().rposition(|i| matches!(i, Instr::Run(_))).expect("some work");
            for (at, instr) in row.iter().enumerate() {
                if let Instr::Reduce(b) = instr {
                    let stage = p.buckets()[b.index()].stages[0];
                    assert_eq!(at < last_run, stage.index() > d / 2, "{stage} of D={d}");
                }
            }
        }
    }
}
