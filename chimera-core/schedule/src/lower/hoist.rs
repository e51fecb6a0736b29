//! The places of recomputations.
//!
//! A recomputation right before its backward holds saved activations for the shortest time, and
//! runs while the worker waits for the gradient. If there is no such wait, it can be hoisted into
//! an earlier one (Liu et al., Mario, PPoPP 2025), and saved activations are held longer.

use std::fmt;
use std::iter::successors;
use std::str::FromStr;

use crate::activation_memory::{ActivationMemory, is_within};
use crate::costs::is_shorter;
use crate::effects::Rules;
use crate::ir::ids::WorkerId;
use crate::ir::op::{Cell, Kind, Op};
use crate::ir::timetable::Timetable;

/// The place of a recomputation in its row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hoist {
    /// Right before its backward, and it waits for the gradient too
    /// (see [`Timetable::on_demand`]).
    OnDemand,
    /// Up to this many cells earlier than right before its backward: not before its forward, and
    /// not where saved activations would exceed [`Lowering::max_peak`](super::Lowering::max_peak).
    By(usize),
    /// The number of cells with the shortest makespan, up to D. Tries all numbers up to 16, then
    /// 32, 64 and so on, then those around the best. Takes the smallest of equally good ones.
    Auto,
}

impl FromStr for Hoist {
    type Err = String;

    fn from_str(text: &str) -> Result<Hoist, String> {
        match text {
            "on-demand" => Ok(Hoist::OnDemand),
            "auto" => Ok(Hoist::Auto),
            number => number.parse().map(Hoist::By).map_err(|_| {
                format!("unknown hoist `{number}`: choose on-demand, auto or a number of cells")
            }),
        }
    }
}

impl fmt::Display for Hoist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hoist::OnDemand => f.write_str("on-demand"),
            Hoist::By(cells) => write!(f, "{cells}"),
            Hoist::Auto => f.write_str("auto"),
        }
    }
}

/// Numbers of cells up to this one are all tried.
const EACH: usize = 16;

/// The number of cells, up to `most`, with the least time among those that [`Hoist::Auto`] tries.
pub(super) fn shortest(most: usize, takes: impl Fn(usize) -> f64) -> usize {
    let better = |cells, (best, least)| {
        let time = takes(cells);
        let is_better = is_shorter(time, least) || cells < best && !is_shorter(least, time);
        if is_better { (cells, time) } else { (best, least) }
    };
    let mut best = (0, takes(0));
    for cells in 1..=most.min(EACH) {
        best = better(cells, best);
    }
    let doubled = |cells: &usize| (*cells < most).then(|| most.min(2 * cells));
    for cells in successors(Some(EACH), doubled).skip(1) {
        best = better(cells, best);
    }
    if best.0 < EACH {
        return best.0; // its neighbours have been tried
    }
    let halved = |step: &usize| (*step > 1).then(|| step.div_ceil(2));
    for step in successors(Some(best.0), halved).skip(1) {
        let around = best.0;
        for cells in [around.saturating_sub(step), most.min(around + step)] {
            best = better(cells, best);
        }
    }
    best.0
}

/// A cell, and the saved activations that the worker holds before it, and at its peak.
#[derive(Clone, Copy)]
struct CellPeak {
    cell: Cell,
    before: f64,
    most: f64,
}

/// Moves every recomputation that was not part of the row `before` up to `cells` cells towards the
/// start of its row, as far as `limit` allows.
pub(super) fn hoisted(
    timetable: &Timetable,
    before: &Rules,
    cells: usize,
    limit: Option<f64>,
) -> Timetable {
    let rules = Rules::of(timetable);
    let activations = ActivationMemory::new(&timetable.placement, timetable.units_per_micro);
    let mut all = timetable.clone();
    for (w, row) in (0..).map(WorkerId).zip(&mut all.rows) {
        let mut now = 0.0;
        let mut counted: Vec<CellPeak> = Vec::with_capacity(row.len());
        for &cell in row.iter() {
            let (more, less) = activations.change(w, &cell, &rules);
            counted.push(CellPeak { cell, before: now, most: now + more });
            now += more - less;
            if let Cell::One(op) = cell
                && op.kind == Kind::Recompute
                && !before.is_recomputed(op.pipe, op.stage)
            {
                move_up(&mut counted, &op, more, cells, limit);
            }
        }
        *row = counted.into_iter().map(|c| c.cell).collect();
    }
    all
}

/// Moves the last of `row`, the recomputation `op`, which adds `activations`, past up to `cells`
/// cells.
fn move_up(row: &mut [CellPeak], op: &Op, activations: f64, cells: usize, limit: Option<f64>) {
    let mut at = row.len() - 1;
    for _ in 0..cells {
        let Some(passed) = at.checked_sub(1).map(|before| row[before]) else { return };
        let makes_it = |f: Op| {
            let overlaps = f.span.start < op.span.units().end && op.span.start < f.span.units().end;
            f.kind == Kind::Forward && (f.pipe, f.stage) == (op.pipe, op.stage) && overlaps
        };
        if passed.cell.ops().any(makes_it) || !is_within(passed.most + activations, limit) {
            return;
        }
        let before = passed.before;
        let most = passed.before + activations;
        row[at] =
            CellPeak { before: before + activations, most: passed.most + activations, ..passed };
        at -= 1;
        row[at] = CellPeak { cell: Cell::One(*op), before, most };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// The smallest number with the least time, for any times that fall and then rise.
    #[test]
    fn the_shortest_is_found_in_few_steps() {
        for most in 1..=40usize {
            for least in 0..=most {
                let n_tried = Cell::new(0);
                let takes = |cells: usize| {
                    n_tried.set(n_tried.get() + 1);
                    cells.abs_diff(least) as f64 + 1.0
                };
                assert_eq!(shortest(most, takes), least, "{least} of {most}");
                assert!(n_tried.get() <= EACH as u32 + 3 * most.ilog2(), "{least} of {most}");
                let flat = |cells| if cells < least { 2.0 } else { 1.0 };
                assert_eq!(shortest(most, flat), least, "{least} of {most}");
                // One number is short among others that are not, as when stages differ.
                if least <= EACH {
                    let alone = |cells| if cells == least { 1.0 } else { 2.0 };
                    assert_eq!(shortest(most, alone), least, "{least} of {most}");
                }
            }
        }
    }
}
