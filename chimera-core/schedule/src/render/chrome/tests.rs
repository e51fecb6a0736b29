use super::*;
use crate::analyze::simulate;
use crate::costs::{Costs, UniformCosts};
use crate::ir::ids::{BucketId, WorkerId};
use crate::lower::{Lowering, lower};
use crate::schedule::{SCHEDULES, Shape, find};

struct WithSums;

impl Costs for WithSums {
    fn op(&self, worker: WorkerId, op: &Op) -> f64 {
        UniformCosts::new(1.0, 2.0, 0.0).op(worker, op)
    }

    fn reduce(&self, _: BucketId) -> f64 {
        3.0
    }
}

pub(super) fn events(program: &Program) -> Vec<Value> {
    let trace = trace(program, &simulate(program, &WithSums));
    let trace: Value = serde_json::from_str(&trace).unwrap();
    trace["traceEvents"].as_array().unwrap().clone()
}

pub(super) fn program(schedule: &str, shape: Shape) -> Program {
    let timetable = find(schedule).unwrap().timetable(&shape).unwrap();
    lower(&timetable, &Lowering::default()).unwrap()
}

fn number(event: &Value, key: &str) -> f64 {
    event[key].as_f64().unwrap()
}

/// A step without waits or kernels.
fn ran(program: &Program, timeline: Timeline) -> Ran<'_> {
    let waits = Vec::new();
    let kernels = Vec::new();
    Ran { program, group: 0, step: 0, timeline, waits, kernels }
}

#[test]
fn every_op_is_a_slice_and_every_message_an_arrow() {
    for schedule in SCHEDULES {
        let program = program(schedule.name(), Shape::new(4, 8));
        let events = events(&program);
        let count = |phase: &str, category: &str| {
            let of = |e: &&Value| e["ph"] == phase && e["cat"] == category;
            events.iter().filter(of).count()
        };
        let cells = program.rows().iter().flatten();
        let n_cells = cells.filter(|i| matches!(i, crate::program::Instr::Run(_))).count();
        assert_eq!(count("X", "forward") + count("X", "backward"), n_cells);
        assert_eq!(count("s", "message"), program.n_messages(), "{}", schedule.name());
        assert_eq!(count("f", "message"), program.n_messages(), "{}", schedule.name());
    }
}

#[test]
fn a_recovery_is_a_gap_of_all_ranks() {
    let program = program("dapple", Shape::new(2, 1));
    let timeline = simulate(&program, &WithSums);
    let end = timeline.makespan();
    let ran = ran(&program, timeline);
    let gap = Gap { start: end, end: end + 2.0, reason: "rank 1 was replaced".into() };
    let trace: Value = serde_json::from_str(&training(&[ran], &[gap], None)).unwrap();
    let events = trace["traceEvents"].as_array().unwrap().iter();
    let gaps: Vec<_> = events.filter(|e| e["cat"] == "recovery").collect();
    assert_eq!(gaps.iter().map(|e| number(e, "pid")).collect::<Vec<_>>(), [0.0, 1.0]);
    for gap in gaps {
        assert_eq!(gap["name"], "recovery: rank 1 was replaced");
        assert_eq!((number(gap, "ts"), number(gap, "dur")), (end * MICROSECONDS, 2e6));
    }
}

#[test]
fn ops_have_flops_and_messages_bytes_where_sizes_are_known() {
    let program = program("dapple", Shape::new(2, 1));
    let timeline = simulate(&program, &WithSums);
    let ran = ran(&program, timeline);
    let stage = StageBytes { saved: 3.0, output: 5.0, gradient: 7.0, ..StageBytes::default() };
    let sizes = Sizes { bytes: vec![stage; 2], forward_flops: vec![10.0, 20.0], samples: 4.0 };
    let trace: Value = serde_json::from_str(&training(&[ran], &[], Some(&sizes))).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let flops = |category: &str| {
        let slices = events.iter().filter(|e| e["ph"] == "X" && e["cat"] == category);
        slices.map(|e| e["args"]["ops"][0]["flops"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((flops("forward"), flops("backward")), (vec![40.0, 80.0], vec![80.0, 160.0]));
    let arrows = events.iter().filter(|e| e["ph"] == "s");
    let bytes: Vec<_> = arrows.map(|e| e["args"]["bytes"].as_f64().unwrap()).collect();
    assert_eq!(bytes, [20.0, 28.0]); // the activation, then the gradient
    let is_memory = |e: &&Value| e["ph"] == "C" && e["name"] == "activation memory";
    let held: Vec<_> =
        events.iter().filter(is_memory).map(|e| e["args"]["bytes"].as_f64().unwrap()).collect();
    assert_eq!(held, [0.0, 12.0, 0.0, 0.0, 12.0, 0.0]);
}

#[test]
fn arrows_go_from_the_slice_that_makes_to_the_slice_that_eats() {
    let events = events(&program("dapple", Shape::new(2, 1)));
    let slice = |pid: u64, name: &str| {
        let is = |e: &&Value| e["ph"] == "X" && e["pid"] == pid && e["name"] == name;
        events.iter().find(is).unwrap()
    };
    let arrow = |phase: &str, name: &str| {
        events.iter().find(|e| e["ph"] == phase && e["name"] == name).unwrap()
    };
    let leaves = arrow("s", "activation");
    let arrives = arrow("f", "activation");
    assert_eq!(leaves["id"], arrives["id"]);
    let from = slice(0, "F0");
    assert!((number(from, "ts")..number(from, "dur")).contains(&number(leaves, "ts")));
    assert_eq!((&leaves["pid"], &arrives["pid"]), (&json!(0), &json!(1)));
    assert_eq!(number(arrives, "ts"), number(slice(1, "F0"), "ts"));
    assert_eq!(number(arrow("f", "gradient"), "ts"), 4e6);
    assert_eq!((number(slice(0, "B0"), "ts"), number(slice(0, "B0"), "dur")), (4e6, 2e6));
}

#[test]
fn slices_of_a_thread_do_not_overlap() {
    let events = events(&program("chimera", Shape { n_pipes: 4, ..Shape::new(4, 8) }));
    let mut slices: Vec<_> = events
        .iter()
        .filter(|e| e["ph"] == "X")
        .map(|e| {
            let thread = (e["pid"].as_u64().unwrap(), e["tid"].as_u64().unwrap());
            (thread, number(e, "ts"), number(e, "ts") + number(e, "dur"))
        })
        .collect();
    assert!(slices.iter().any(|((_, lane), ..)| *lane > 0), "no sum is shown");
    slices.sort_by(|a, b| (a.0, a.1).partial_cmp(&(b.0, b.1)).unwrap());
    for pair in slices.windows(2) {
        assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1 + 1e-6, "{pair:?}");
    }
}
