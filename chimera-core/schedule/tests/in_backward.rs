//! Reductions within the backward: the sum of a stage's gradients is awaited before its last
//! gradient goes upstream.

use chimera_schedule::analyze::simulate;
use chimera_schedule::costs::{Costs, UniformCosts};
use chimera_schedule::effects::TokenKind;
use chimera_schedule::ids::{BucketId, StageId, WorkerId};
use chimera_schedule::lower::{Lowering, Sync, lower, lower_at};
use chimera_schedule::op::Op;
use chimera_schedule::program::{Instr, Program};
use chimera_schedule::render::text;
use chimera_schedule::schedule::{SCHEDULES, Scaling, Shape, find};
use proptest::prelude::*;

/// A backward takes two forwards, and every reduction some time.
struct Reducing(f64);

impl Costs for Reducing {
    fn op(&self, worker: WorkerId, op: &Op) -> f64 {
        UniformCosts::new(1.0, 2.0, 0.0).op(worker, op)
    }

    fn reduce(&self, _: BucketId) -> f64 {
        self.0
    }
}

fn program(schedule: &str, shape: &Shape, sync: Sync) -> Program {
    let timetable = find(schedule).expect("known").timetable(shape).expect("fits");
    let how = Lowering { sync, ..Lowering::default() };
    lower_at(&timetable, &how, &UniformCosts::new(1.0, 2.0, 0.0)).expect("proven")
}

/// The first worker learns of its last gradient only after the sums of all later stages.
#[test]
fn a_drain_waits_for_one_sum_after_another() {
    let shape = Shape::new(3, 3);
    let draw = |name, sync| {
        let timeline = simulate(&program("dapple", &shape, sync), &Reducing(2.0));
        format!("{} {}\n{}", timeline.makespan(), name, text::timeline(&timeline))
    };
    insta::assert_snapshot!(
        draw("eager", Sync::Eager) + "\n" + &draw("in-backward", Sync::InBackward)
    );
}

/// One sum of a chain of D stages is hidden by none of the others: D sums instead of one.
#[test]
fn a_flush_takes_a_sum_for_each_stage_longer() {
    for schedule in ["gpipe", "dapple"] {
        for d in 1..=6 {
            let makespan = |sync, takes| {
                let program = program(schedule, &Shape::new(d, 2 * d as u32), sync);
                simulate(&program, &Reducing(takes)).makespan()
            };
            let compute = makespan(Sync::AtEnd, 0.0);
            assert_eq!(makespan(Sync::AtEnd, 5.0), compute + 5.0, "{schedule} {d}");
            let all = compute + 5.0 * d as f64;
            assert_eq!(makespan(Sync::InBackward, 5.0), all, "{schedule} {d}");
        }
    }
}

/// Each sum is awaited at once, and the gradients that a worker's last backward of the stage makes
/// are sent later.
fn check(program: &Program) {
    for row in program.rows() {
        for (at, instr) in row.iter().enumerate() {
            let Instr::Reduce(b) = *instr else { continue };
            assert_eq!(row[at + 1], Instr::Await(b));
            let bucket = &program.buckets()[b.index()];
            let [stage] = bucket.stages[..] else { continue };
            // Of several replicas only the last keeps its gradient until the sum is there.
            if bucket.members.len() > 1 || program.window().n_steps() > 1 {
                continue;
            }
            let is_its_send = |instr: &Instr| {
                matches!(instr, Instr::Send(token, _)
                    if token.kind == TokenKind::Gradient && token.stage == stage)
            };
            let last = row.iter().rposition(|instr| match instr {
                Instr::Run(cell) => {
                    cell.ops().any(|op| op.stage == stage && op.kind.adds_gradient())
                }
                _ => false,
            });
            let Some(last) = last else { continue };
            assert!(last < at, "{stage} is summed after its last backward");
            let is_inside = !row[last + 1..at].iter().any(|i| matches!(i, Instr::Run(_)));
            assert!(!is_inside || !row[last..at].iter().any(is_its_send), "{stage}");
        }
    }
}

#[test]
fn every_schedule_is_proven_with_sums_in_its_backwards() {
    for schedule in SCHEDULES.iter() {
        for depth in [1, 2, 3, 4, 6] {
            for n in [1, 2, 3, 4, 5, 7, 8, 12] {
                for (_, scaling) in Scaling::ALL {
                    let shape = Shape { scaling, window: 3, ..Shape::new(depth, n) };
                    let Ok(timetable) = schedule.timetable(&shape) else { continue };
                    let last = timetable.placement.n_stages() as u16 - 1;
                    let both = vec![StageId(0), StageId(last)];
                    let can_tie = last > 0 && !timetable.update.is_asynchronous();
                    let tied = if can_tie { vec![both] } else { Vec::new() };
                    let how = Lowering { sync: Sync::InBackward, ..Lowering::default() };
                    for how in [how.clone(), Lowering { barrier: false, tied, ..how }] {
                        let proven = lower(&timetable, &how);
                        let name = schedule.name();
                        check(&proven.unwrap_or_else(|e| panic!("{name} {depth} {n}: {e}")));
                    }
                }
            }
        }
    }
}

proptest! {
    /// The order of compute does not change, and no sum begins later than at the end.
    #[test]
    fn only_the_places_of_sums_differ(
        schedule in prop::sample::select(SCHEDULES.iter().map(|s| s.name()).collect::<Vec<_>>()),
        depth in 1usize..=6,
        n in 1u32..=12,
    ) {
        let shape = Shape { window: 2, ..Shape::new(depth, n) };
        prop_assume!(find(schedule).expect("known").timetable(&shape).is_ok());
        let cells = |sync| {
            let program = program(schedule, &shape, sync);
            let is_run = |instr: &&Instr| matches!(instr, Instr::Run(_));
            let rows = program.rows().iter();
            rows.map(|row| row.iter().filter(is_run).copied().collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        prop_assert_eq!(cells(Sync::InBackward), cells(Sync::AtEnd));
    }
}
