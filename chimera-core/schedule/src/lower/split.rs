//! The pass that splits backwards: input halves take their place, weight halves fill idle time
//! (2BP, Rae, Lee & Richings, 2024, arXiv 2405.18047).

use std::collections::VecDeque;

use super::{DryRun, Lowering, dry_run, offload};
use crate::activation_memory::{ActivationMemory, is_within};
use crate::analyze::{Refusal, Timeline, Work};
use crate::costs::{Costs, is_shorter, of_cell};
use crate::effects::Rules;
use crate::ir::ids::WorkerId;
use crate::ir::op::{Cell, Kind, Op};
use crate::ir::timetable::Timetable;
use crate::ir::update::Update;

/// Splits every whole backward.
///
/// A weight half goes into idle time after its input half, in a simulation at `costs`; without idle
/// time it goes to the end of the row. At these costs the makespan is never longer than before.
/// Saved activations are held until the weight half is done, so a worker may hold more than before,
/// but only where that shortens the step. Under [`Lowering::max_peak`] weight halves run as early
/// as the limit requires. An asynchronous timetable updates weights all the time: there they stay
/// right after their input halves. Backwards that are split already stay where they are, and pairs
/// that take less time than their ops stay whole.
///
/// # Errors
/// If the timetable is not sound.
pub fn split_backward(
    timetable: &Timetable,
    how: &Lowering,
    costs: &impl Costs,
) -> Result<Timetable, Refusal> {
    split(timetable, how, costs, |split| dry_run(split, costs))
}

/// [`split_backward`] before [`offload`], which takes saved activations away, but not deferred
/// weight work. Weight halves go to the places that are best after that.
pub(super) fn split_before_offload(
    timetable: &Timetable,
    how: &Lowering,
    costs: &impl Costs,
) -> Result<Timetable, Refusal> {
    split(timetable, how, costs, |split| dry_run(&offload(split.clone(), how, costs)?, costs))
}

/// The best split by a dry run.
fn split(
    timetable: &Timetable,
    how: &Lowering,
    costs: &impl Costs,
    dry_run: impl Fn(&Timetable) -> Result<DryRun, Refusal>,
) -> Result<Timetable, Refusal> {
    let workers = (0..).map(WorkerId).zip(&timetable.rows);
    let rows: Vec<Vec<Split>> = workers
        .map(|(w, row)| row.iter().map(|cell| Split::of(w, cell, costs)).collect())
        .collect();
    let tried = |rows| {
        let all = Timetable { rows, ..timetable.clone() };
        dry_run(&all).map(|run| (all, run))
    };
    // Right after their input halves, weight halves only let messages leave sooner.
    let mut best = tried(rows.iter().map(|row| behind(row)).collect())?;
    if timetable.update != Update::Flush {
        return Ok(best.0);
    }
    let (_, late) = tried(rows.iter().map(|row| at_end(row)).collect())?;
    let room = Room {
        rules: Rules::of(timetable),
        activations: ActivationMemory::new(&timetable.placement, timetable.units_per_micro),
        costs,
    };
    // Often an equally short timetable holds no more than before.
    let limits = [Some(best.1.objective.peak), how.max_peak];
    for (limit, fit) in limits.into_iter().flat_map(|l| [(l, Fit::Whole), (l, Fit::Some)]) {
        let mut guide = late.timeline.clone();
        // A weight half that has to go early delays others, which then find other idle time.
        for _ in 0..3 {
            let starts = starts(&rows, &guide);
            let fill = |(w, row): (usize, &Vec<Split>)| {
                room.fill(WorkerId(w as u16), row, &starts[w], fit, limit)
            };
            let filled = tried(rows.iter().enumerate().map(fill).collect())?;
            guide.clone_from(&filled.1.timeline);
            if is_better(&filled.1, &best.1, how.max_peak) {
                best = filled;
            }
        }
    }
    Ok(best.0)
}

/// A cell with split backwards, and the weight halves that it leaves.
struct Split {
    cell: Cell,
    leaves: Vec<Op>,
}

impl Split {
    fn of(worker: WorkerId, cell: &Cell, costs: &impl Costs) -> Split {
        let apart: f64 = cell.ops().map(|op| costs.op(worker, &op)).sum();
        if is_shorter(of_cell(costs, worker, cell), apart) {
            return Split { cell: *cell, leaves: Vec::new() };
        }
        let mut leaves = Vec::new();
        let input_half = |op: Op| match op.kind {
            Kind::Backward => {
                leaves.push(Op { kind: Kind::BackwardWeight, ..op });
                Op { kind: Kind::BackwardInput, ..op }
            }
            _ => op,
        };
        let cell = cell.map(input_half);
        Split { cell, leaves }
    }
}

fn behind(row: &[Split]) -> Vec<Cell> {
    let leaves = |split: &Split| split.leaves.clone().into_iter().map(Cell::One);
    row.iter().flat_map(|split| std::iter::once(split.cell).chain(leaves(split))).collect()
}

fn at_end(row: &[Split]) -> Vec<Cell> {
    let leaves = row.iter().flat_map(|split| &split.leaves).map(|op| Cell::One(*op));
    row.iter().map(|split| split.cell).chain(leaves).collect()
}

/// The start of each cell of `rows` in `timeline`, which has other cells too.
fn starts(rows: &[Vec<Split>], timeline: &Timeline) -> Vec<Vec<f64>> {
    let mut starts: Vec<Vec<f64>> = vec![Vec::new(); rows.len()];
    for event in &timeline.events {
        let row = &rows[event.worker.index()];
        let starts = &mut starts[event.worker.index()];
        let next = row.get(starts.len()).map(|split| Work::Cell(split.cell));
        if next == Some(event.work) {
            starts.push(event.start);
        }
    }
    starts
}

/// The weight halves that fit into idle time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// Weight halves that are done when it ends.
    Whole,
    /// Ops that at least begin in it.
    Some,
}

/// Everything that decides where weight halves go.
struct Room<'c, C> {
    rules: Rules,
    activations: ActivationMemory,
    costs: &'c C,
}

impl<C: Costs> Room<'_, C> {
    /// The row of a worker with its weight halves, oldest first, in the time before the `starts` of
    /// its cells.
    fn fill(
        &self,
        worker: WorkerId,
        row: &[Split],
        starts: &[f64],
        fit: Fit,
        limit: Option<f64>,
    ) -> Vec<Cell> {
        let mut filled = Vec::with_capacity(2 * row.len());
        let mut left = VecDeque::new();
        let mut clock = 0.0;
        let mut held = 0.0;
        for (split, &start) in row.iter().zip(starts) {
            let (more, less) = self.activations.change(worker, &split.cell, &self.rules);
            while let Some(&half) = left.front() {
                let takes = self.costs.op(worker, &half);
                let is_over = !is_within(held + more, limit);
                let is_idle = match fit {
                    Fit::Whole => clock + takes <= start + takes * 1e-9,
                    Fit::Some => clock + takes * 1e-9 < start,
                };
                if !is_over && !is_idle {
                    break;
                }
                left.pop_front();
                let cell = Cell::One(half);
                held -= self.activations.change(worker, &cell, &self.rules).1;
                clock += takes;
                filled.push(cell);
            }
            held += more - less;
            clock = start.max(clock) + of_cell(self.costs, worker, &split.cell);
            filled.push(split.cell);
            left.extend(&split.leaves);
        }
        filled.extend(left.into_iter().map(Cell::One));
        filled
    }
}

/// Returns true if `one` keeps to the limit and `other` does not, or else is better.
fn is_better(one: &DryRun, other: &DryRun, limit: Option<f64>) -> bool {
    let is_over = |r: &DryRun| !is_within(r.objective.peak, limit);
    if is_over(one) == is_over(other) {
        one.objective.is_better_than(&other.objective)
    } else {
        is_over(other)
    }
}
