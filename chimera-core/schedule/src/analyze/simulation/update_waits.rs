//! Waits for updates within the rows of a window of steps, before the ops that read new weights.

use super::timeline::{Timeline, Work};
use crate::ir::ids::{BucketId, WorkerId};
use crate::ir::op::Lane;
use crate::program::{Instr, Program};

/// For each worker and each compute cell of its row, the time at which the sums and updates that
/// the row waits for right before the cell are done. `None` for no wait, and infinite for the step
/// sync.
pub(in crate::analyze) struct UpdateWaits(Vec<Vec<Option<f64>>>);

impl UpdateWaits {
    /// The waits of a simulated or measured timeline of `program`.
    pub(in crate::analyze) fn of(program: &Program, timeline: &Timeline) -> UpdateWaits {
        if !program.rows().iter().any(|row| has_waits(row)) {
            return UpdateWaits(Vec::new());
        }
        let mut busy = vec![Vec::new(); program.rows().len()];
        let mut summed = vec![0.0f64; program.buckets().len()];
        for event in &timeline.events {
            let step = match event.work {
                Work::Reduce(bucket) => {
                    let summed = &mut summed[bucket.index()];
                    *summed = summed.max(event.end);
                    continue;
                }
                Work::Cell(_) => None,
                Work::Step(bucket) => Some(bucket),
                Work::Move(_) => continue,
            };
            busy[event.worker.index()].push(Busy { end: event.end, step });
        }
        // A sum begins when all members have come to it, and a member may wait for another sum
        // before.
        loop {
            let before = summed.clone();
            let row = |(worker, busy): (WorkerId, &Vec<Busy>)| {
                row_waits(program, worker, busy, &mut summed)
            };
            let waits = (0..).map(WorkerId).zip(&busy).map(row).collect();
            if summed == before {
                return UpdateWaits(waits);
            }
        }
    }

    /// The time at which the updates that a worker waits for right before a compute cell are done.
    pub(in crate::analyze) fn before(&self, worker: WorkerId, nth_cell: usize) -> Option<f64> {
        self.0.get(worker.index())?.get(nth_cell).copied().flatten()
    }
}

/// Work that keeps a worker busy: an update of a bucket, or a cell.
#[derive(Clone, Copy)]
struct Busy {
    end: f64,
    step: Option<BucketId>,
}

/// Returns true if a compute cell of a row comes after a wait for an update.
fn has_waits(row: &[Instr]) -> bool {
    let is_compute =
        |instr: &Instr| matches!(instr, Instr::Run(cell) if cell.lane() == Lane::Compute);
    let last = row.iter().rposition(is_compute).unwrap_or(0);
    let is_wait = |instr: &Instr| {
        let is_of_bucket = instr.awaited().is_some() || instr.updated().is_some();
        is_of_bucket || matches!(instr, Instr::Agree)
    };
    row[..last].iter().any(is_wait)
}

/// The waits of a row, given the times at which buckets are `summed`. Delays a bucket to the start
/// of its reduction on this worker, if that is later.
fn row_waits(
    program: &Program,
    worker: WorkerId,
    busy: &[Busy],
    summed: &mut [f64],
) -> Vec<Option<f64>> {
    let mut busy = busy.iter().peekable();
    let mut now = 0.0f64;
    let mut awaited = None;
    let mut waits = Vec::new();
    for instr in &program.rows()[worker.index()] {
        match instr {
            Instr::Run(cell) if cell.lane() == Lane::Compute => {
                if let Some(event) = busy.find(|event| event.step.is_none()) {
                    now = event.end;
                }
                waits.push(awaited.take());
            }
            Instr::Agree => awaited = Some(f64::INFINITY),
            _ => {}
        }
        if let Some(bucket) = instr.reduced() {
            let summed = &mut summed[bucket.index()];
            *summed = summed.max(now);
        }
        if let Some(bucket) = instr.awaited() {
            now = now.max(summed[bucket.index()]);
            awaited = Some(now.max(awaited.unwrap_or(0.0)));
        }
        if let Some(bucket) = instr.updated() {
            if let Some(event) = busy.next_if(|event| event.step == Some(bucket)) {
                now = event.end;
            }
            awaited = Some(now.max(awaited.unwrap_or(0.0)));
        }
    }
    waits
}

#[cfg(test)]
mod tests {
    use crate::analyze::{IdleTime, simulate, simulated_idle};
    use crate::costs::{Costs, StageCosts, UniformCosts};
    use crate::ir::ids::{BucketId, WorkerId};
    use crate::ir::op::Op;
    use crate::lower::{Lowering, free_border, lower};
    use crate::schedule::{SCHEDULES, Shape, find};

    /// The idle time of all workers in two steps without a border, by cause, and its sum.
    fn shares(schedule: &str, shape: &Shape, costs: &impl Costs) -> (IdleTime, f64) {
        let timetable = find(schedule).expect("known").timetable(shape).expect("fits");
        let program = lower(&free_border(timetable, 2), &Lowering::default()).expect("proven");
        let timeline = simulate(&program, costs);
        let each = simulated_idle(&program, &timeline, costs);
        (IdleTime::shares(&each, timeline.makespan()), timeline.bubble_ratio())
    }

    /// The first forward of the second step has its input at once, but not its weights.
    #[test]
    fn a_wait_for_new_weights_is_not_caused_by_the_order() {
        let stages = [2.0, 4.0].map(|backward| UniformCosts::new(1.0, backward, 0.0));
        let (shares, _) = shares("gpipe", &Shape::new(2, 2), &StageCosts::new(stages.to_vec()));
        assert_eq!(shares.order, 0.0, "{shares:?}");
        assert!(shares.gradient > 0.0, "{shares:?}");
    }

    /// Both workers of GEMS hold both stages, and end a step one after the other.
    #[test]
    fn a_wait_for_gradients_of_another_replica_is_the_step_sync_though_their_sum_is_free() {
        let (shares, _) = shares("gems", &Shape::new(2, 2), &UniformCosts::new(1.0, 2.0, 0.0));
        assert!(shares.sync > 0.0 && shares.reduction == 0.0, "{shares:?}");
        assert!(shares.other.abs() < 1e-9, "{shares:?}");
    }

    #[test]
    fn all_idle_time_between_steps_has_a_cause() {
        struct WithUpdates {
            reduce: f64,
            step: f64,
        }
        impl Costs for WithUpdates {
            fn op(&self, worker: WorkerId, op: &Op) -> f64 {
                UniformCosts::new(1.0, 2.0, 0.0).op(worker, op)
            }
            fn reduce(&self, _: BucketId) -> f64 {
                self.reduce
            }
            fn step(&self, _: BucketId) -> f64 {
                self.step
            }
        }
        for schedule in SCHEDULES {
            for (reduce, step) in [(0.0, 0.0), (3.0, 0.0), (0.0, 0.5), (3.0, 0.5)] {
                let costs = WithUpdates { reduce, step };
                let (shares, bubble) = shares(schedule.name(), &Shape::new(4, 8), &costs);
                let what = format!("{} {reduce} {step}: {shares:?} of {bubble}", schedule.name());
                assert!((shares.total() - bubble).abs() < 1e-9, "{what}");
                assert!(shares.other.abs() < 1e-9, "{what}");
            }
        }
    }
}
