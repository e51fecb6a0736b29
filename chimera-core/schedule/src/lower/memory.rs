//! Waits for memory: ops wait for memory that another lane frees, so that no worker ever holds more
//! saved activations than in the written order of its row.
//!
//! In that order ops fill memory and free it one after the other. The n-th op that fills some may
//! begin once as much has been freed as at its place in the row. The order determines which op
//! frees it, and if that op is on another lane, a token reports that it is done. So the peak of a
//! worker does not depend on times.

use rustc_hash::FxHashMap;

use crate::activation_memory::{ActivationMemory, ROUNDING};
use crate::effects::{Fill, Rules, Token, TokenKind};
use crate::ir::few::Few;
use crate::ir::ids::WorkerId;
use crate::ir::op::{Cell, Kind, Lane, Op};
use crate::ir::timetable::Timetable;

/// The ops that wait for memory, and the ops that free it: by worker and index of the cell, each
/// token with the worker at its other end.
#[derive(Default)]
pub(super) struct MemoryWaits {
    pub(super) takes: FxHashMap<(WorkerId, usize), Few<(Token, WorkerId)>>,
    pub(super) gives: FxHashMap<(WorkerId, usize), Few<(Token, WorkerId)>>,
}

/// The waits of a timetable with moves; empty for another one.
pub(super) fn waits(timetable: &Timetable, rules: &Rules) -> MemoryWaits {
    let mut waits = MemoryWaits::default();
    if !rules.has_moves() {
        return waits;
    }
    let memory = ActivationMemory::new(&timetable.placement, timetable.units_per_micro);
    let senders = Senders::of(timetable);
    for (worker, row) in (0..).map(WorkerId).zip(&timetable.rows) {
        let changes: Vec<_> = row.iter().map(|cell| memory.change(worker, cell, rules)).collect();
        let mut held = 0.0;
        let mut peak = 0.0f64;
        for (more, less) in &changes {
            peak = peak.max(held + more);
            held += more - less;
        }
        let mut filled = 0.0;
        let mut freed = 0.0;
        let mut n_freed = 0;
        let mut last: [Option<usize>; 2] = [None; 2];
        // The last wait of each lane, by its worker and the lane that frees.
        let mut known: FxHashMap<(WorkerId, Lane, Lane), usize> = FxHashMap::default();
        for (at, cell) in row.iter().enumerate().filter(|(at, _)| changes[*at].0 > 0.0) {
            filled += changes[at].0;
            while freed + ROUNDING < filled - peak && n_freed < row.len() {
                if changes[n_freed].1 > 0.0 {
                    freed += changes[n_freed].1;
                    last[row[n_freed].lane().index()] = Some(n_freed);
                }
                n_freed += 1;
            }
            let Some((filler, begins)) = senders.begins(worker, at, cell, rules) else { continue };
            for lane in Lane::ALL {
                let Some(frees) = last[lane.index()] else { continue };
                let waiting = (begins.0, timetable.rows[begins.0.index()][begins.1].lane());
                if waiting == (worker, lane)
                    || known.get(&(waiting.0, waiting.1, lane)) >= Some(&frees)
                {
                    continue;
                }
                known.insert((waiting.0, waiting.1, lane), frees);
                let fill = match filler.kind {
                    Kind::Keep => Fill::Guest,
                    Kind::Reload => Fill::Reload,
                    Kind::Recompute => Fill::Recompute,
                    _ => Fill::Forward,
                };
                let Op { pipe, stage, span, .. } = filler;
                let kind = TokenKind::Memory(lane, fill);
                let token = Token { kind, pipe, stage, to: stage, span };
                waits.gives.entry((worker, frees)).or_default().push((token, waiting.0));
                waits.takes.entry(begins).or_default().push((token, worker));
            }
        }
    }
    waits
}

/// The places of the ops that send saved activations from worker to worker.
struct Senders(FxHashMap<Op, (WorkerId, usize)>);

impl Senders {
    fn of(timetable: &Timetable) -> Senders {
        let mut all = FxHashMap::default();
        for (worker, row) in (0..).map(WorkerId).zip(&timetable.rows) {
            for (at, cell) in row.iter().enumerate() {
                let sends = |op: &Op| matches!(op.kind, Kind::Offload | Kind::Return);
                all.extend(cell.ops().filter(sends).map(|op| (op, (worker, at))));
            }
        }
        Senders(all)
    }

    /// The op that fills the memory of a worker at a cell, and the cell that begins with it: for
    /// activations from another worker, the one that sends them. `None` if there is no such cell,
    /// as in a timetable that will be refused.
    fn begins(
        &self,
        worker: WorkerId,
        at: usize,
        cell: &Cell,
        rules: &Rules,
    ) -> Option<(Op, (WorkerId, usize))> {
        let op = cell.ops().next()?;
        let sender = match op.kind {
            Kind::Keep => Kind::Offload,
            Kind::Reload if rules.keeper(op.pipe, op.stage, op.span.start).is_some() => {
                Kind::Return
            }
            _ => return Some((op, (worker, at))),
        };
        Some((op, *self.0.get(&Op { kind: sender, ..op })?))
    }
}
