//! The cycle of waits in a program in which no row can go on.

use super::refusal::{Reason, Refusal, cell_index, refusal};
use crate::ir::ids::WorkerId;
use crate::ir::op::Lane;
use crate::program::{Instr, Program, ShardOp};

/// A lane of a worker.
type LaneOf = (WorkerId, Lane);

/// The refusal of a program with workers stuck at `positions` of their rows, of compute and of
/// moves, although channels have as much room as they need. It names the workers of one cycle and
/// marks the first; all others wait for these.
pub(super) fn deadlock(program: &Program, positions: &[[usize; 2]]) -> Refusal {
    let stuck = Stuck { program, positions };
    let cycle = stuck.cycle();
    let at = cycle.first().map(|(lane, _)| (lane.0, stuck.at(*lane)));
    let waits = cycle.into_iter().map(|(lane, what)| {
        let worker = lane.0;
        let cell = cell_index(&program.rows[worker.index()], stuck.at(lane));
        format!("{worker} waits at cell {cell} for {what}")
    });
    refusal(program, at, Reason::Deadlock(waits.collect()))
}

struct Stuck<'p> {
    program: &'p Program,
    positions: &'p [[usize; 2]],
}

impl Stuck<'_> {
    fn at(&self, (worker, lane): LaneOf) -> usize {
        self.positions[worker.index()][lane.index()]
    }

    /// The lanes of a cycle, each with the thing it waits for. If the first stuck lane leads to one
    /// that waits in vain, only that one.
    fn cycle(&self) -> Vec<(LaneOf, String)> {
        let mut waits: Vec<(LaneOf, String)> = Vec::new();
        let mut all = self.workers().flat_map(|worker| Lane::ALL.map(|lane| (worker, lane)));
        let mut next = all.find(|lane| self.wait(*lane).is_some());
        while let Some((waiting, (what, by))) = next.and_then(|lane| Some((lane, self.wait(lane)?)))
        {
            if let Some(first) = waits.iter().position(|(seen, _)| *seen == waiting) {
                return waits.split_off(first);
            }
            waits.push((waiting, what));
            next = Some(by);
        }
        waits.split_off(waits.len().saturating_sub(1))
    }

    /// The wait of a lane, and the lane that would have to go on first. Lanes wait only for
    /// receives, sums, the step sync, and tokens of the other lane.
    fn wait(&self, (worker, lane): LaneOf) -> Option<(String, LaneOf)> {
        let program = self.program;
        let compute = |worker| (worker, Lane::Compute);
        let is_behind = |other: &WorkerId, what: Instr| {
            let row = &program.rows[other.index()];
            row.iter().position(|i| *i == what).is_none_or(|at| self.at(compute(*other)) < at)
        };
        let instr = program.rows[worker.index()].get(self.at((worker, lane)))?;
        if instr.lane() != lane {
            return None; // its own lanes have ended
        }
        if let (Some(bucket), Some(start)) = (instr.awaited(), instr.counterpart()) {
            let mut members = program.buckets[bucket.index()].members.iter().copied();
            let behind = members.find(|member| is_behind(member, start))?;
            let what = format!("the gradient reduction of {bucket} with {behind}");
            return Some((what, compute(behind)));
        }
        match *instr {
            Instr::Recv(token, channel) => {
                let from = program.channels[channel.index()].from;
                let sender = match Instr::Send(token, channel).lane() {
                    Lane::Moves => (from, Lane::Moves),
                    Lane::Compute => compute(from),
                };
                Some((format!("{token} from {from}"), sender))
            }
            Instr::Agree if self.has_moves_left(worker) => {
                Some(("its moves of activations".to_string(), (worker, Lane::Moves)))
            }
            instr @ Instr::Agree => {
                let behind = self.workers().find(|other| is_behind(other, instr))?;
                Some((format!("the agreement with {behind}"), compute(behind)))
            }
            Instr::Shard(ShardOp::Gather(of)) => {
                let mut sharers = program.sharers(of.stage).into_iter();
                let behind = sharers.find(|w| is_behind(w, Instr::Shard(ShardOp::Share(of))))?;
                Some((format!("the shard of {} from {behind}", of.stage), compute(behind)))
            }
            Instr::Take(token) => Some((token.to_string(), (worker, lane.other()))),
            Instr::Run(ref cell) if program.rules.has_moves() => {
                let eats = program.rules.cell_effects(cell).eats;
                let awaited =
                    eats.iter().find(|t| lane == Lane::Moves || t.kind.crosses_lanes())?;
                Some((awaited.to_string(), (worker, lane.other())))
            }
            _ => None,
        }
    }

    fn has_moves_left(&self, worker: WorkerId) -> bool {
        let row = &self.program.rows[worker.index()];
        row[self.at((worker, Lane::Moves))..].iter().any(|instr| instr.lane() == Lane::Moves)
    }

    fn workers(&self) -> impl Iterator<Item = WorkerId> + use<> {
        (0..self.program.rows.len() as u16).map(WorkerId)
    }
}

#[cfg(test)]
mod tests {
    use crate::ir::op::Kind;
    use crate::lower::{Lowering, lower};
    use crate::schedule::{Shape, find};

    /// All workers are stuck, and two of them are the cause.
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
