//! The pass that recomputes residuals instead of keeping them.
//!
//! A recomputation right before its backward holds residuals for as short as can be, and runs while
//! the worker waits for the gradient. Where there is no such wait, it can be hoisted into an earlier one
//! (Liu et al., Mario, PPoPP 2025), for which residuals are held longer.

use std::fmt;
use std::str::FromStr;

use super::{Lowering, rehearse};
use crate::analyze::memory::{Residuals, is_within};
use crate::analyze::{Costs, Refusal};
use crate::effects::Rules;
use crate::ids::{PipeId, StageId, WorkerId};
use crate::names::by_name;
use crate::op::{Cell, Kind, Op};
use crate::timetable::Timetable;

/// What a forward keeps for its backward.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Recompute {
    /// All residuals.
    #[default]
    None,
    /// Its input alone: everything is computed again.
    Full,
    /// The residuals that are dear to compute; the others are computed again.
    Selective,
}

impl Recompute {
    /// Every way with its name on the command line.
    pub const ALL: [(&'static str, Recompute); 3] =
        [("none", Recompute::None), ("full", Recompute::Full), ("selective", Recompute::Selective)];
}

impl FromStr for Recompute {
    type Err = String;

    fn from_str(name: &str) -> Result<Recompute, String> {
        by_name("recomputation", name, &Recompute::ALL)
    }
}

/// Where in a row a recomputation stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hoist {
    /// Right before its backward, and it waits for the gradient too
    /// (see [`Lowering::on_demand`]).
    OnDemand,
    /// Up to so many cells earlier than right before its backward: not before its forward, and not where
    /// residuals would exceed [`Lowering::max_peak`].
    By(usize),
    /// By the least number of cells, up to D, with the least makespan.
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

/// Recomputes the stages of the pipes for which `what` says so. Stages that are recomputed already stay
/// as they are.
///
/// # Errors
/// If the timetable is not sound.
pub fn recompute(
    timetable: &Timetable,
    what: impl Fn(PipeId, StageId) -> Recompute,
    hoist: Hoist,
    how: &Lowering,
    costs: &impl Costs,
) -> Result<Timetable, Refusal> {
    let before = Rules::of(timetable);
    let next_to_backwards = insert(timetable, &before, what);
    let hoisted = |cells| hoisted(&next_to_backwards, &before, cells, how.max_peak);
    match hoist {
        Hoist::OnDemand => Ok(next_to_backwards),
        Hoist::By(cells) => Ok(hoisted(cells)),
        Hoist::Auto => {
            let mut best = next_to_backwards.clone();
            let mut least = rehearse(&best, how, costs)?.makespan;
            for cells in 1..=timetable.placement.n_workers() {
                let earlier = hoisted(cells);
                let makespan = rehearse(&earlier, how, costs)?.makespan;
                if makespan < least {
                    (best, least) = (earlier, makespan);
                }
            }
            Ok(best)
        }
    }
}

/// Every recomputation right before its backward, but for stages that had theirs `before`.
fn insert(
    timetable: &Timetable,
    before: &Rules,
    what: impl Fn(PipeId, StageId) -> Recompute,
) -> Timetable {
    let mut all = timetable.clone();
    let asked = |op: &Op| match before.is_recomputed(op.pipe, op.stage) {
        true => Recompute::None,
        false => what(op.pipe, op.stage),
    };
    for row in &mut all.rows {
        let cells = std::mem::take(row);
        for cell in cells {
            let backwards = cell.ops().filter(|op| op.kind.eats_residuals());
            for op in backwards.filter(|op| asked(op) != Recompute::None) {
                row.push(Op { kind: Kind::Recompute, ..op }.into());
            }
            row.push(cell);
        }
    }
    for (p, pipe) in (0..).map(PipeId).zip(timetable.placement.pipes()) {
        let stages = (0..pipe.len() as u16).map(|s| (p, StageId(s)));
        let selective = stages
            .filter(|(p, s)| !before.is_recomputed(*p, *s) && what(*p, *s) == Recompute::Selective);
        all.selective.extend(selective);
    }
    all
}

/// A cell, and the residuals that the worker holds before it and most while it runs.
#[derive(Clone, Copy)]
struct Counted {
    cell: Cell,
    before: f64,
    most: f64,
}

/// Moves every recomputation that was not there `before` up to `cells` cells towards the start of its
/// row, as far as `limit` allows.
fn hoisted(timetable: &Timetable, before: &Rules, cells: usize, limit: Option<f64>) -> Timetable {
    let rules = Rules::of(timetable);
    let residuals = Residuals::new(&timetable.placement, timetable.units_per_micro);
    let mut all = timetable.clone();
    for (w, row) in (0..).map(WorkerId).zip(&mut all.rows) {
        let mut now = 0.0;
        let mut counted: Vec<Counted> = Vec::with_capacity(row.len());
        for &cell in row.iter() {
            let (more, less) = residuals.change(w, &cell, &rules);
            counted.push(Counted { cell, before: now, most: now + more });
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

/// Moves the last of `row`, the recomputation `op` of so many residuals, past up to `cells` cells.
fn move_up(row: &mut [Counted], op: &Op, residuals: f64, cells: usize, limit: Option<f64>) {
    let mut at = row.len() - 1;
    for _ in 0..cells {
        let Some(passed) = at.checked_sub(1).map(|before| row[before]) else { return };
        let makes_it = |f: Op| {
            let overlaps = f.span.start < op.span.units().end && op.span.start < f.span.units().end;
            f.kind == Kind::Forward && (f.pipe, f.stage) == (op.pipe, op.stage) && overlaps
        };
        if passed.cell.ops().any(makes_it) || !is_within(passed.most + residuals, limit) {
            return;
        }
        let (before, most) = (passed.before, passed.before + residuals);
        row[at] = Counted { before: before + residuals, most: passed.most + residuals, ..passed };
        at -= 1;
        row[at] = Counted { cell: Cell::One(*op), before, most };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::UniformCosts;
    use crate::schedule::{Shape, find};

    fn makespan(hoist: Hoist, max_peak: Option<f64>) -> (f64, f64) {
        let timetable = find("chimera").unwrap().timetable(&Shape::new(8, 8)).unwrap();
        let costs = UniformCosts::new(1.0, 2.0, 0.0);
        let on_demand = hoist == Hoist::OnDemand;
        let how = Lowering { max_peak, on_demand, ..Lowering::default() };
        let all = recompute(&timetable, |_, _| Recompute::Full, hoist, &how, &costs).unwrap();
        let rehearsal = rehearse(&all, &how, &costs).unwrap();
        (rehearsal.makespan, rehearsal.peak)
    }

    /// After Mario: Chimera with D = N = 8, F = R = 1, B = 2; 36 without recomputation.
    #[test]
    fn hoisting_shortens_chimera() {
        assert_eq!(makespan(Hoist::OnDemand, None), (50.0, 1.0));
        assert_eq!(makespan(Hoist::By(0), None), (44.0, 1.0));
        assert_eq!(makespan(Hoist::By(3), None).0, 41.0);
        assert_eq!(makespan(Hoist::Auto, None), makespan(Hoist::By(3), None));
    }

    #[test]
    fn hoisting_stays_below_a_limit() {
        let (unlimited, most) = makespan(Hoist::By(3), None);
        assert_eq!(makespan(Hoist::By(8), Some(1.0)), (44.0, 1.0));
        assert_eq!(makespan(Hoist::By(3), Some(most)), (unlimited, most));
        for limit in 1..most as u32 {
            let (makespan, peak) = makespan(Hoist::By(3), Some(f64::from(limit)));
            assert!(peak <= f64::from(limit) && (unlimited..=44.0).contains(&makespan));
        }
    }
}
