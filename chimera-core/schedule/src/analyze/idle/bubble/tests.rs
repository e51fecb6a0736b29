use super::*;
use crate::analyze::simulate;
use crate::costs::UniformCosts;
use crate::ir::ids::BucketId;
use crate::ir::op::{Cell, Op};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;
use crate::lower::{Hoist, Lowering, Recompute, bpipe, lower, offload, recompute};
use crate::schedule::{SCHEDULES, Schedule, Shape, find};

fn program(schedule: &str, shape: Shape) -> Program {
    let timetable = find(schedule).expect("known").timetable(&shape).expect("fits");
    lower(&timetable, &Lowering::default()).expect("proven")
}

fn of(program: &Program, costs: &impl Costs) -> (Timeline, Vec<IdleTime>) {
    let timeline = simulate(program, costs);
    let idle = simulated_idle(program, &timeline, costs);
    (timeline, idle)
}

/// Worker 0: F 0-1, B 5-7. Worker 1: F 1.5-2.5, B 2.5-4.5.
#[test]
fn a_gap_is_split_where_the_value_is_made_and_where_it_arrives() {
    let (_, idle) = of(&program("gpipe", Shape::new(2, 1)), &UniformCosts::new(1.0, 2.0, 0.5));
    let none = IdleTime::default();
    assert_eq!(idle[0], IdleTime { gradient: 3.5, message: 0.5, ..none });
    assert_eq!(idle[1], IdleTime { activation: 1.0, message: 0.5, sync: 2.5, ..none });
}

/// Worker 0: F0 0-1, F1 1-2, I0 5-6, I1 7-8, W0, W1. Worker 1: F0 1-2, F1 2-3, B0 3-5, B1 5-7.
#[test]
fn a_wait_is_the_order_s_if_a_later_op_could_run_in_the_same_memory() {
    let first = [0, 1].map(|m| Op::forward(0, 0, m));
    let inputs = [0, 1].map(|m| Op::backward_input(0, 0, m));
    let weights = [0, 1].map(|m| Op::backward_weight(0, 0, m));
    let last = [Op::forward(0, 1, 0), Op::forward(0, 1, 1)];
    let backwards = [Op::backward(0, 1, 0), Op::backward(0, 1, 1)];
    let cells = |ops: &[[Op; 2]]| ops.iter().flatten().map(|op| Cell::One(*op)).collect();
    let rows = vec![cells(&[first, inputs, weights]), cells(&[last, backwards])];
    let timetable = Timetable::new("mine", Placement::line(2), 2, rows);
    let program = lower(&timetable, &Lowering::default()).expect("proven");
    let costs = UniformCosts::new(1.0, 2.0, 0.0);
    let (_, idle) = of(&program, &costs);
    let none = IdleTime::default();
    assert_eq!(idle[0], IdleTime { gradient: 3.0, order: 1.0, ..none });
    assert_eq!(idle[1], IdleTime { activation: 1.0, sync: 3.0, ..none });
    // One more forward would raise the peak of 1F1B; in GPipe all forwards are done.
    for schedule in ["1f1b", "gpipe"] {
        let (_, idle) = of(&self::program(schedule, Shape::new(4, 8)), &costs);
        assert!(idle.iter().all(|idle| idle.order == 0.0), "{schedule}: {idle:?}");
    }
}

#[test]
fn all_idle_time_has_a_cause_and_a_simulation_knows_it() {
    struct Costly;
    impl Costs for Costly {
        fn op(&self, worker: WorkerId, op: &Op) -> f64 {
            let stage = f64::from(op.stage.0 % 3);
            UniformCosts::new(1.0 + stage, 2.0, 0.0).op(worker, op)
        }
        fn message(&self, token: &Token) -> f64 {
            0.25 * f64::from(token.stage.0)
        }
        fn reduce(&self, _: BucketId) -> f64 {
            3.0
        }
        fn step(&self, _: BucketId) -> f64 {
            0.5
        }
    }
    let how = Lowering::default();
    let plain = |schedule: &&dyn Schedule| schedule.timetable(&Shape::new(4, 8)).expect("fits");
    let on_demand = |timetable: &Timetable| {
        recompute(timetable, |_, _| Recompute::Full, Hoist::OnDemand, &how, &Costly)
    };
    let plain: Vec<Timetable> = SCHEDULES.iter().map(plain).collect();
    let can_recompute = |timetable: &&Timetable| timetable.update.row().reads_one_version();
    let recomputed = plain.iter().filter(can_recompute);
    let recomputed = recomputed.map(|timetable| on_demand(timetable).expect("sound"));
    for timetable in recomputed.chain(plain.iter().cloned()) {
        let program = lower(&timetable, &how).expect("proven");
        let (timeline, idle) = of(&program, &Costly);
        let shares = IdleTime::shares(&idle, timeline.makespan());
        let name = &timetable.schedule;
        let bubble = timeline.bubble_ratio();
        assert!((shares.total() - bubble).abs() < 1e-9, "{name}: {shares:?} of {bubble}");
        assert!(shares.reduction > 0.0, "{name}: {shares:?}");
        assert!(shares.other.abs() < 1e-9, "{name}: {shares:?}");
    }
}

/// Worker 0: F0 0-1, O0 1-3, F1 3-4, L0 4-6, B0 6-8, B1 after the gradient: it holds one
/// micro-batch at most.
#[test]
fn a_worker_waits_for_moves_of_what_it_needs_and_of_what_is_in_the_way() {
    let timetable = find("gpipe").expect("known").timetable(&Shape::new(1, 2)).expect("fits");
    let costs = UniformCosts { transfer: 2.0, ..UniformCosts::new(1.0, 2.0, 0.0) };
    let how = Lowering { max_peak: Some(1.0), ..Lowering::default() };
    let moved = offload(timetable, &how, &costs).expect("sound");
    let program = lower(&moved, &how).expect("proven");
    let (timeline, idle) = of(&program, &costs);
    let moves = timeline.makespan() - 6.0;
    assert_eq!(idle, [IdleTime { moves, ..IdleTime::default() }]);
    assert!(moves >= 4.0, "{timeline:?}");
}

#[test]
fn a_simulation_with_moves_knows_all_causes() {
    for (schedule, transfer) in [("1f1b", 0.0), ("1f1b", 2.0), ("gpipe", 3.0), ("zb-h2", 1.5)] {
        let plain = find(schedule).expect("known").timetable(&Shape::new(6, 12)).expect("fits");
        let costs = UniformCosts { transfer, ..UniformCosts::new(1.0, 2.0, 0.25) };
        let how = Lowering::default();
        let half = lower(&plain, &how).expect("proven").peak() / 2.0;
        let limited = Lowering { max_peak: Some(half.ceil()), ..how.clone() };
        for moved in [bpipe(plain.clone(), &costs), offload(plain, &limited, &costs)] {
            let program = lower(&moved.expect("sound"), &how).expect("proven");
            let (timeline, idle) = of(&program, &costs);
            let shares = IdleTime::shares(&idle, timeline.makespan());
            let bubble = timeline.bubble_ratio();
            assert!((shares.total() - bubble).abs() < 1e-9, "{schedule} {transfer}");
            assert!(shares.other.abs() < 1e-9, "{schedule} {transfer}: {shares:?}");
            let may_wait = transfer >= 1.5 && program.rules().has_moves();
            assert_eq!(shares.moves > 0.0, may_wait, "{schedule} {transfer}: {shares:?}");
        }
    }
}

/// The thread of worker 1 continues a second after the message has arrived, and both end with a
/// step sync.
#[test]
fn measured_time_without_a_wait_is_other() {
    let program = program("gpipe", Shape::new(2, 1));
    let mut timeline = simulate(&program, &UniformCosts::new(1.0, 2.0, 0.0));
    for event in timeline.events.iter_mut().filter(|event| event.start >= 1.0) {
        (event.start, event.end) = (event.start + 1.0, event.end + 1.0);
    }
    let cells = timeline.events.iter().filter(|e| e.worker == WorkerId(1));
    let Some(Work::Cell(first)) = cells.map(|e| e.work).next() else { panic!("no op") };
    let token = program.rules().cell_effects(&first).eats[0];
    let awaited = Awaited::Message(token);
    let wait = Wait { worker: WorkerId(1), awaited, start: 0.0, end: 1.25 };
    let idle = measured_idle(&program, &timeline, &[wait]);
    let none = IdleTime::default();
    let expected = IdleTime { activation: 1.0, message: 0.25, other: 0.75, sync: 2.0, ..none };
    assert_eq!(idle[1], expected);
}
