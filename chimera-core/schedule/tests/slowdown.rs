//! Reductions that take a share of their members' compute and messages while they run.

use chimera_schedule::analyze::simulate;
use chimera_schedule::analyze::timeline::{Timeline, Work};
use chimera_schedule::costs::{Costs, UniformCosts};
use chimera_schedule::effects::Token;
use chimera_schedule::ids::{BucketId, WorkerId};
use chimera_schedule::lower::{Lowering, Sync, lower};
use chimera_schedule::op::{Cell, Kind, Op};
use chimera_schedule::program::{Instr, Program};
use chimera_schedule::schedule::{SCHEDULES, Shape, find};
use proptest::prelude::*;
use std::collections::HashMap;

/// A backward takes two forwards.
struct Slowing {
    reduce: f64,
    share: f64,
    message: f64,
}

impl Costs for Slowing {
    fn op(&self, worker: WorkerId, op: &Op) -> f64 {
        UniformCosts::new(1.0, 2.0, 0.0).op(worker, op)
    }

    fn message(&self, _: &Token) -> f64 {
        self.message
    }

    fn occupies(&self, _: &Token) -> f64 {
        self.message
    }

    fn reduce(&self, bucket: BucketId) -> f64 {
        self.reduce * f64::from(bucket.0 % 3 + 1)
    }

    fn reduction_share(&self) -> f64 {
        self.share
    }
}

fn program(schedule: &str, shape: &Shape, sync: Sync) -> Option<Program> {
    let timetable = find(schedule).expect("known").timetable(shape).ok()?;
    Some(lower(&timetable, &Lowering { sync, ..Lowering::default() }).expect("proven"))
}

/// One worker with two stages: F0 F1 B1, and the sum of stage 1 under B0. Sums take 8 and 4.
#[test]
fn a_backward_under_a_sum_takes_the_time_computed_by_hand() {
    let shape = Shape { n_chunks: 2, ..Shape::new(1, 1) };
    let program = program("interleaved", &shape, Sync::Eager).expect("fits");
    let last_backward = |share| {
        let timeline = simulate(&program, &Slowing { reduce: 4.0, share, message: 0.0 });
        let cells = timeline.events.iter().filter(|e| matches!(e.work, Work::Cell(_)));
        (cells.map(|e| e.end).fold(0.0, f64::max), timeline.makespan())
    };
    assert_eq!(last_backward(0.0), (6.0, 16.0));
    assert_eq!(last_backward(0.5), (8.0, 16.0));
    // It outlasts the sum: after 8 units of time at a sixteenth, 1.5 are left.
    assert_eq!(last_backward(0.9375), (13.5, 17.5));
}

/// Worker 1 of Chimera reduces stage 2 while it sends the last gradient of stage 1 to worker 0.
#[test]
fn a_message_under_its_sender_s_sum_takes_longer() {
    let program = program("chimera", &Shape::new(4, 4), Sync::Eager).expect("fits");
    let takes = |share| {
        let timeline = simulate(&program, &Slowing { reduce: 50.0, share, message: 0.25 });
        let last = |worker, stage| {
            let is_its = |work: &Work| match work {
                Work::Cell(cell) => {
                    cell.ops().all(|op| (op.kind, op.stage.0) == (Kind::Backward, stage))
                }
                _ => false,
            };
            let events = timeline.events.iter();
            events.rev().find(|e| e.worker.0 == worker && is_its(&e.work)).expect("ran")
        };
        last(0, 0).start - last(1, 1).end
    };
    assert_eq!([0.0, 0.5, 0.75].map(takes), [0.25, 0.5, 1.0]);
}

/// The time for which `work` of compute lasts from `start` on, beside the sums of a worker.
fn lasts(start: f64, work: f64, sums: &[(f64, f64)], share: f64) -> f64 {
    let mut edges: Vec<f64> = sums.iter().flat_map(|(from, to)| [*from, *to]).collect();
    edges.retain(|edge| *edge > start);
    edges.sort_by(f64::total_cmp);
    let (mut at, mut left) = (start, work);
    for edge in edges.into_iter().chain([f64::INFINITY]) {
        let middle = if edge.is_finite() { (at + edge) / 2.0 } else { at + 1.0 };
        let is_slow = sums.iter().any(|(from, to)| *from < middle && middle < *to);
        let speed = if is_slow { 1.0 - share } else { 1.0 };
        if left <= (edge - at) * speed {
            return at + left / speed - start;
        }
        left -= (edge - at) * speed;
        at = edge;
    }
    unreachable!("the last edge is at infinity")
}

/// The costs at which cells took as long as in a timeline.
struct Taken(HashMap<(WorkerId, Cell), f64>, Slowing);

impl Costs for Taken {
    fn op(&self, worker: WorkerId, op: &Op) -> f64 {
        self.0[&(worker, Cell::One(*op))]
    }

    fn pair(&self, worker: WorkerId, a: &Op, b: &Op) -> f64 {
        self.0[&(worker, Cell::Pair(*a, *b))]
    }

    fn reduce(&self, bucket: BucketId) -> f64 {
        self.1.reduce(bucket)
    }
}

fn is_close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * (1.0 + a.abs())
}

/// Checks each cell against the sums beside it, and all times against a simulation without slowing.
fn check(program: &Program, costs: Slowing) {
    let timeline = simulate(program, &costs);
    let mut taken = HashMap::new();
    for (w, row) in program.rows().iter().enumerate() {
        let worker = WorkerId(w as u16);
        let of_worker = || timeline.events.iter().filter(move |e| e.worker == worker);
        let mut started = Vec::new();
        for instr in row {
            match instr {
                Instr::Reduce(bucket) => started.extend(
                    of_worker().find(|e| e.work == Work::Reduce(*bucket)).map(|e| (e.start, e.end)),
                ),
                Instr::Run(cell) => {
                    let event = of_worker().find(|e| e.work == Work::Cell(*cell)).expect("ran");
                    let work = chimera_schedule::costs::of_cell(&costs, worker, cell);
                    let lasts = lasts(event.start, work, &started, costs.share);
                    assert!(is_close(event.end - event.start, lasts), "{cell:?}");
                    taken.insert((worker, *cell), event.end - event.start);
                }
                _ => {}
            }
        }
    }
    let again = simulate(program, &Taken(taken, costs));
    let times = |timeline: &Timeline| {
        let mut times: Vec<_> =
            timeline.events.iter().map(|e| (e.worker, e.start, e.end)).collect();
        times.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.total_cmp(&b.2)));
        times
    };
    for ((_, start, end), (_, from, to)) in times(&timeline).into_iter().zip(times(&again)) {
        assert!(is_close(start, from) && is_close(end, to), "{start} {end}, {from} {to}");
    }
}

proptest! {
    #[test]
    fn cells_go_on_at_the_speed_that_sums_leave(
        schedule in prop::sample::select(SCHEDULES.iter().map(|s| s.name()).collect::<Vec<_>>()),
        depth in 1usize..=6,
        n in 1u32..=9,
        sync in prop::sample::select(Sync::ALL.map(|(_, s)| s).to_vec()),
        reduce in 0.1f64..9.0,
        share in 0.05f64..0.95,
    ) {
        let shape = Shape { window: 2, ..Shape::new(depth, n) };
        let Some(program) = program(schedule, &shape, sync) else { return Ok(()) };
        check(&program, Slowing { reduce, share, message: 0.0 });
    }
}
