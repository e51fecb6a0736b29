//! The rows of workers that keep saved activations for others.

use super::row::{MovingRow, written};
use crate::activation_memory::ActivationMemory;
use crate::analyze::Timeline;
use crate::analyze::timeline::Work;
use crate::costs::Costs;
use crate::effects::Rules;
use crate::ir::ids::WorkerId;
use crate::ir::op::{Cell, Kind, Op};

/// Rows of workers with moves to partners: the worker at the other end of the pipeline keeps the
/// activations.
pub(super) struct Partners<'t, C> {
    pub(super) rules: &'t Rules,
    pub(super) memory: &'t ActivationMemory,
    /// The timeline of the rows without moves.
    pub(super) timeline: &'t Timeline,
    pub(super) costs: &'t C,
    /// The assumed duration of a move, relative to its time.
    pub(super) pace: f64,
}

impl<C: Costs> Partners<'_, C> {
    /// The cells of `rows`, and the cells that their partners add.
    pub(super) fn keep(&self, rows: &[MovingRow]) -> Vec<Vec<Cell>> {
        let mut times: Vec<Vec<(f64, f64)>> = vec![Vec::new(); rows.len()];
        for event in &self.timeline.events {
            if let Work::Cell(_) = event.work {
                times[event.worker.index()].push((event.start, event.end));
            }
        }
        let mut all: Vec<Vec<Cell>> = rows.iter().map(written).collect();
        for (worker, row) in (0..).map(WorkerId).zip(rows).filter(|(_, row)| row.has_moves()) {
            let partner = WorkerId(rows.len() as u16 - 1 - worker.0);
            let kept = self.kept(worker, row, &times[worker.index()]);
            let own = std::mem::take(&mut all[partner.index()]);
            let times = &times[partner.index()];
            all[partner.index()] = self.merged((partner, &own, times), &kept);
        }
        all
    }

    /// The partner's ops for a row of `worker`, each with the time at which it fills the partner's
    /// memory, or has freed it.
    fn kept(&self, worker: WorkerId, row: &MovingRow, times: &[(f64, f64)]) -> Vec<(f64, Op)> {
        let mut clock = 0.0f64;
        let mut kept = Vec::new();
        for placed in &row.cells {
            let Cell::One(op) = placed.cell else { continue };
            let kind = match op.kind {
                Kind::Offload => Kind::Keep,
                Kind::Reload => Kind::Return,
                _ => continue,
            };
            let start =
                clock.max(times.get(placed.with).map_or(f64::INFINITY, |(start, _)| *start));
            clock = start + self.pace * self.costs.op(worker, &op);
            kept.push((if kind == Kind::Keep { start } else { clock }, Op { kind, ..op }));
        }
        kept
    }

    /// The cells of a worker's row, which begin and end at `times`, merged with those that keep
    /// something for another worker, in the order in which memory is filled and freed: a forward
    /// fills memory when it begins, and a backward frees it when it ends.
    fn merged(
        &self,
        (worker, row, times): (WorkerId, &[Cell], &[(f64, f64)]),
        kept: &[(f64, Op)],
    ) -> Vec<Cell> {
        let mut merged = Vec::with_capacity(row.len() + kept.len());
        let mut kept = kept.iter().peekable();
        for (cell, (start, end)) in row.iter().zip(times) {
            let (more, _) = self.memory.change(worker, cell, self.rules);
            let changes = if more > 0.0 { *start } else { *end };
            let rounding = changes * 1e-9;
            let is_before = |(clock, op): &(f64, Op)| match op.kind {
                Kind::Keep if more == 0.0 => *clock + rounding < changes,
                _ => *clock <= changes + rounding,
            };
            while let Some((_, op)) = kept.next_if(|kept| is_before(kept)) {
                merged.push(Cell::One(*op));
            }
            merged.push(*cell);
        }
        merged.extend(kept.map(|(_, op)| Cell::One(*op)));
        merged
    }
}
