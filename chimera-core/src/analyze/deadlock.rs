//! Who waits for whom, where no row can move.

use super::refusal::{Reason, Refusal, cell_index, refusal};
use crate::ids::WorkerId;
use crate::program::{Instr, Program};

/// The refusal of a program whose workers are stuck at `positions` of their rows, with all the room in
/// channels that they want: it names those of one cycle and marks the first. All others wait for these.
pub(super) fn deadlock(program: &Program, positions: &[usize]) -> Refusal {
    let cycle = cycle(program, positions);
    let at = cycle.first().map(|(worker, _)| (*worker, positions[worker.index()]));
    let waits = cycle.into_iter().map(|(worker, what)| {
        let cell = cell_index(&program.rows[worker.index()], positions[worker.index()]);
        format!("{worker} waits at cell {cell} for {what}")
    });
    refusal(program, at, Reason::Deadlock(waits.collect()))
}

/// The workers that wait for each other, and each for what. If the waits of the first stuck worker end
/// with one that waits in vain, that one alone.
fn cycle(program: &Program, positions: &[usize]) -> Vec<(WorkerId, String)> {
    let mut waits: Vec<(WorkerId, String)> = Vec::new();
    let mut worker = workers(program).find(|w| wait(program, positions, *w).is_some());
    while let Some((waiting, (what, by))) =
        worker.and_then(|w| Some((w, wait(program, positions, w)?)))
    {
        if let Some(first) = waits.iter().position(|(seen, _)| *seen == waiting) {
            return waits.split_off(first);
        }
        waits.push((waiting, what));
        worker = Some(by);
    }
    waits.split_off(waits.len().saturating_sub(1))
}

/// What a worker waits for, and who would have to go on first. Only receives, sums and the agreement wait.
fn wait(program: &Program, positions: &[usize], worker: WorkerId) -> Option<(String, WorkerId)> {
    let is_behind = |other: &WorkerId, what: Instr| {
        let row = &program.rows[other.index()];
        row.iter().position(|i| *i == what).is_none_or(|at| positions[other.index()] < at)
    };
    match *program.rows[worker.index()].get(positions[worker.index()])? {
        Instr::Recv(token, channel) => {
            let from = program.channels[channel.index()].from;
            Some((format!("{token} from {from}"), from))
        }
        Instr::Await(bucket) => {
            let mut members = program.buckets[bucket.index()].members.iter().copied();
            let behind = members.find(|member| is_behind(member, Instr::Reduce(bucket)))?;
            Some((format!("the gradient reduction of {bucket} with {behind}"), behind))
        }
        instr @ Instr::Agree => {
            let behind = workers(program).find(|other| is_behind(other, instr))?;
            Some((format!("the agreement with {behind}"), behind))
        }
        _ => None,
    }
}

fn workers(program: &Program) -> impl Iterator<Item = WorkerId> {
    (0..program.rows.len() as u16).map(WorkerId)
}

#[cfg(test)]
mod tests {
    use crate::lower::{Lowering, lower};
    use crate::op::Kind;
    use crate::schedule::{Shape, find};

    /// Everybody is stuck, two of them at fault.
    #[test]
    fn only_those_that_wait_for_each_other_are_named() {
        let mut timetable = find("dapple").unwrap().timetable(&Shape::new(64, 64)).unwrap();
        let row = &mut timetable.rows[40];
        let backward = row.iter().position(|cell| cell.ops().all(|op| op.kind == Kind::Backward));
        let backward = row.remove(backward.unwrap());
        row.insert(1, backward);
        let refusal = lower(&timetable, &Lowering::default()).unwrap_err().to_string();
        let (line, drawing) = refusal.split_once('\n').unwrap();
        assert_eq!(
            line,
            "1f1b is not a safe schedule: worker 40, cell 1: deadlock: worker 40 waits at cell 1 for \
             gradient(pipe 0, stage 41, micro-batch 0) from worker 41; worker 41 waits at cell 1 for \
             activation(pipe 0, stage 40, micro-batch 1) from worker 40"
        );
        assert!(drawing.starts_with("0 0' 1 2 "), "{drawing}");
    }
}
