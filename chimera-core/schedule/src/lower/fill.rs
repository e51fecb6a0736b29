//! The pass that fills the idle time of a program with a caller's own work (Osawa et al.,
//! PipeFisher, MLSys 2023).

use std::collections::VecDeque;

use super::Lowering;
use crate::analyze::simulate::occupies;
use crate::analyze::timeline::{Event, Timeline, Work};
use crate::analyze::{Refusal, check, simulate};
use crate::costs::{Costs, is_shorter};
use crate::effects::{OwnWork, Pieces};
use crate::ir::ids::{PipeId, StageId, WorkId, WorkerId};
use crate::ir::op::{Cell, Kind, Lane, Op, Span};
use crate::program::{Instr, Program};

/// Number of a worker's backwards with pieces that may wait. Beyond it the first piece runs even if
/// the worker is not idle, since waiting pieces take memory.
const MOST_WAITING: usize = 2;

/// Fills the idle time of each worker with pieces of work: first pieces
/// [`OnBackward`](Pieces::OnBackward), then pieces of [`Anytime`](Pieces::Anytime), alternating
/// between works. Pieces take their `costs`.
///
/// Pieces [`Anytime`](Pieces::Anytime) do not make the step longer. Pieces on backwards that do not
/// fit into idle time run before the sum of their stage.
///
/// # Errors
/// If a worker holds more than `how` allows.
///
/// # Panics
/// If the program has pieces of work already, or `works` are more than 255.
pub fn fill(
    program: &Program,
    works: &[OwnWork],
    how: &Lowering,
    costs: &impl Costs,
) -> Result<Program, Refusal> {
    assert!(program.rules.works().is_empty(), "a program is filled once, with all works");
    let timeline = simulate(program, costs);
    let mut program = program.clone();
    program.rules.add_works(works);
    assert!(program.rules.works().len() <= 255, "a piece says in one byte what work it is of");
    add(&mut program, costs, &timeline, on_backward);
    let timeline = simulate(&program, costs);
    add(&mut program, costs, &timeline, anytime);
    check::prove(&program, how.max_peak)?;
    Ok(program)
}

/// A piece, and the index of the instruction before which it runs.
type PlacedPiece = (usize, Op);

/// Adds to each row the pieces that `pieces` finds for it.
fn add<C: Costs>(
    program: &mut Program,
    costs: &C,
    timeline: &Timeline,
    pieces: impl Fn(&IdleRow<'_, C>) -> Vec<PlacedPiece>,
) {
    let makespan = timeline.makespan();
    for (w, events) in timeline.rows().iter().enumerate() {
        let row = IdleRow::new(program, costs, WorkerId(w as u16), (events, makespan));
        let mut pieces = pieces(&row);
        pieces.sort_by_key(|(at, _)| *at); // pieces at one place keep their order
        let mut pieces = pieces.into_iter().peekable();
        let mut filled = Vec::with_capacity(program.rows[w].len() + pieces.len());
        for (at, instr) in program.rows[w].iter().enumerate() {
            while let Some((_, op)) = pieces.next_if(|(before, _)| *before <= at) {
                filled.push(Instr::Run(op.into()));
            }
            filled.push(*instr);
        }
        filled.extend(pieces.map(|(_, op)| Instr::Run(op.into())));
        program.rows[w] = filled;
    }
}

/// Idle time of a worker, in which pieces can run before the instruction `at` of its row.
#[derive(Clone, Copy)]
struct Idle {
    at: usize,
    from: f64,
    to: f64,
}

/// The row of a worker, and its idle times.
struct IdleRow<'p, C> {
    program: &'p Program,
    costs: &'p C,
    worker: WorkerId,
    instrs: &'p [Instr],
    idle: Vec<Idle>,
}

impl<'p, C: Costs> IdleRow<'p, C> {
    fn new(
        program: &'p Program,
        costs: &'p C,
        worker: WorkerId,
        (events, makespan): (&[&Event], f64),
    ) -> IdleRow<'p, C> {
        let instrs = &program.rows[worker.index()];
        let mut row = IdleRow { program, costs, worker, instrs, idle: Vec::new() };
        row.find_idle(events, makespan);
        row
    }

    fn find_idle(&mut self, events: &[&Event], makespan: f64) {
        let costs = self.costs;
        let mut busy = events.iter().filter(|event| event.work.occupies());
        let standstills: Vec<_> =
            events.iter().filter_map(|event| self.standstill(event)).collect();
        let mut at = 0;
        let mut free = 0.0;
        let until = |idle: &mut Vec<Idle>, at, free, to| {
            let is_whole = !standstills.iter().any(|(from, end)| *from < to && *end > free);
            if is_shorter(free, to) && is_whole {
                idle.push(Idle { at, from: free, to });
            }
        };
        for (index, instr) in self.instrs.iter().enumerate() {
            if instr.lane() != Lane::Compute {
                continue;
            }
            let takes_time = |bucket| costs.step(bucket) != 0.0;
            let is_busy = matches!(instr, Instr::Run(_)) || instr.updated().is_some_and(takes_time);
            match instr {
                _ if is_busy => {
                    let Some(event) = busy.next() else { break };
                    until(&mut self.idle, at, free, event.start);
                    (at, free) = (index + 1, event.end);
                }
                Instr::Send(token, _) => (at, free) = (index + 1, free + costs.occupies(token)),
                Instr::Give(_) => at = index + 1,
                _ => {
                    // Others wait, or take no time.
                    if let Some(bucket) = instr.reduced() {
                        (at, free) = (index + 1, free + costs.reduce_occupies(bucket));
                    }
                }
            }
        }
        until(&mut self.idle, at, free, makespan);
    }

    /// Start and end of the time during which a move stops compute.
    fn standstill(&self, event: &Event) -> Option<(f64, f64)> {
        let Work::Move(op) = event.work else { return None };
        let takes = occupies(self.program, self.costs, (self.worker, &Cell::One(op)));
        (takes > 0.0).then_some((event.start, event.start + takes))
    }

    fn takes(&self, op: &Op) -> f64 {
        self.costs.op(self.worker, op)
    }
}

/// The pieces of each backward, placed in idle time after it, or at the latest before the sum of
/// its stage.
fn on_backward<C: Costs>(row: &IdleRow<'_, C>) -> Vec<PlacedPiece> {
    let rules = &row.program.rules;
    let works: Vec<WorkId> = rules.works_on_backward().collect();
    if works.is_empty() {
        return Vec::new();
    }
    let mut placed = Vec::new();
    let mut waiting: VecDeque<Op> = VecDeque::new();
    let mut idle = row.idle.iter().peekable();
    let end = row.instrs.iter().map(Some).chain([None]);
    for (index, instr) in end.enumerate() {
        while let Some(Idle { at, mut from, to }) = idle.next_if(|idle| idle.at <= index).copied() {
            while let Some(op) = waiting.front().copied()
                && !is_shorter(to - from, row.takes(&op))
            {
                from += row.takes(&op);
                placed.push((at, op));
                waiting.pop_front();
            }
        }
        match instr {
            Some(Instr::Run(cell)) => {
                for op in cell.ops().filter(|op| op.kind.adds_gradient()) {
                    while waiting.len() >= MOST_WAITING * works.len() {
                        placed.extend(waiting.pop_front().map(|op| (index, op)));
                    }
                    for (unit, work) in
                        op.span.units().flat_map(|unit| works.iter().map(move |work| (unit, *work)))
                    {
                        let kind = Kind::Work(work);
                        let span = Span::one(unit);
                        waiting.push_back(Op { kind, span, ..op });
                    }
                }
            }
            instr => {
                let Some(bucket) = instr.and_then(Instr::reduced) else { continue };
                let stages = &row.program.buckets[bucket.index()].stages;
                waiting.retain(|op| {
                    let goes = stages.contains(&op.stage);
                    placed.extend(goes.then_some((index, *op)));
                    !goes
                });
            }
        }
    }
    placed
}

/// Pieces that wait for nothing, alternating between works and stages.
fn anytime<C: Costs>(row: &IdleRow<'_, C>) -> Vec<PlacedPiece> {
    let program = row.program;
    let worker = row.worker;
    let mut kinds = Vec::new();
    for (pipe, stage) in held(program, worker) {
        for (id, own) in program.rules.works().iter().enumerate() {
            let op = Op { kind: Kind::Work(WorkId(id as u8)), pipe, stage, span: Span::one(0) };
            if let Pieces::Anytime(most) = own.pieces
                && row.takes(&op) > 0.0
            {
                kinds.push((op, most));
            }
        }
    }
    let mut placed = Vec::new();
    let mut next = 0; // the next one to get a turn
    for Idle { at, mut from, to } in row.idle.iter().copied() {
        loop {
            let fits = |kind: &usize| {
                let (op, most) = &kinds[*kind];
                op.span.start < *most && !is_shorter(to - from, row.takes(op))
            };
            let Some(kind) = (next..kinds.len()).chain(0..next).find(fits) else { break };
            let (op, _) = &mut kinds[kind];
            placed.push((at, *op));
            from += row.takes(op);
            op.span.start += 1;
            next = (kind + 1) % kinds.len();
        }
    }
    placed
}

/// The stages of pipes that a worker holds.
fn held(program: &Program, worker: WorkerId) -> impl Iterator<Item = (PipeId, StageId)> {
    let pipes = (0..).map(PipeId).zip(program.placement.pipes());
    pipes.flat_map(move |(pipe, workers)| {
        let stages = (0..).map(StageId).zip(workers);
        stages.filter(move |(_, holder)| **holder == worker).map(move |(stage, _)| (pipe, stage))
    })
}

#[cfg(test)]
mod tests;
