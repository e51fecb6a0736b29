//! The listed schedules with every pass over them, the most promising first.

use crate::costs::{Costs, of_cell};
use crate::effects::Rules;
use crate::ir::ids::WorkerId;
use crate::ir::op::{Cell, Kind, Op};
use crate::ir::timetable::Timetable;
use crate::lower::{Hoist, Moves, Passes, Recompute};
use crate::order::makespan;

/// A listed schedule with passes that have not been made.
pub(super) struct Candidate {
    /// Index in the list of schedules.
    pub(super) of: usize,
    pub(super) passes: Passes,
    /// The passes cannot make anything shorter.
    pub(super) at_least: f64,
}

/// The passes that a search may make.
#[derive(Clone, Copy)]
pub(super) struct Choices {
    /// Recomputation, where it saves memory that is needed.
    pub(super) recompute: bool,
    /// Recomputation that the listed schedule has already.
    pub(super) always: Recompute,
    /// Moves of saved activations, likewise.
    pub(super) moves: bool,
}

/// Every choice of passes over a schedule that can keep to the limit, except none at all. `fits` if
/// the schedule keeps to it without any.
pub(super) fn candidates(
    of: usize,
    timetable: &Timetable,
    fits: bool,
    choices: Choices,
    costs: &impl Costs,
) -> Vec<Candidate> {
    let has_whole = timetable.has(Kind::Backward);
    let least = [false, true].map(|split| least_time(timetable, split, costs));
    let recomputed = if choices.recompute || choices.always != Recompute::None {
        least_with_recomputations(timetable, costs)
    } else {
        0.0
    };
    let mut found = Vec::new();
    for split_backward in [false, true] {
        if split_backward && !has_whole {
            continue;
        }
        let all = match choices.always {
            Recompute::None if choices.recompute => {
                vec![
                    (Recompute::None, Hoist::By(0)),
                    (Recompute::Full, Hoist::By(0)),
                    (Recompute::Full, Hoist::Auto),
                ]
            }
            Recompute::None => vec![(Recompute::None, Hoist::By(0))],
            always => vec![(always, Hoist::By(0)), (always, Hoist::Auto)],
        };
        for (recompute, hoist) in all {
            for moves in [Moves::None, Moves::Offload, Moves::Bpipe] {
                let passes = Passes { recompute, hoist, split_backward, moves, free_border: None };
                let saves = recompute != choices.always || moves != Moves::None;
                // What keeps to the limit by itself gains only by late weight halves, which savings
                // make room for.
                let is_vain = if saves { fits && !split_backward } else { !fits };
                let is_listed = !split_backward
                    && moves == Moves::None
                    && hoist == Hoist::By(0)
                    && recompute == choices.always;
                if moves != Moves::None && !choices.moves || is_vain || is_listed {
                    continue;
                }
                let base = least[usize::from(split_backward)];
                let at_least =
                    if recompute == Recompute::None { base } else { base.max(recomputed) };
                found.push(Candidate { of, passes, at_least });
            }
        }
    }
    found
}

/// The options of passes, as on the command line, each after a blank.
pub(super) fn options(passes: Passes) -> String {
    let mut options = String::new();
    match passes.recompute {
        Recompute::None => {}
        Recompute::Full => options += " --recompute full",
        Recompute::Selective => options += " --recompute selective",
    }
    if passes.hoist == Hoist::Auto {
        options += " --hoist auto";
    }
    if passes.split_backward {
        options += " --split-backward";
    }
    match passes.moves {
        Moves::None => options,
        Moves::Offload => options + " --offload auto",
        Moves::Bpipe => options + " --bpipe",
    }
}

/// A lower bound on the time of the rows of a timetable, with backwards split or not: weight halves
/// may then run at any time.
fn least_time(timetable: &Timetable, split: bool, costs: &impl Costs) -> f64 {
    let work = rows(timetable)
        .map(|(worker, row)| row.iter().map(|cell| least_of_cell(costs, worker, cell)).sum())
        .fold(0.0, f64::max);
    let has_pairs = timetable.rows.iter().flatten().any(|cell| matches!(cell, Cell::Pair(..)));
    if !split {
        return work.max(makespan(timetable, costs));
    }
    if has_pairs {
        return work;
    }
    let input = |cell: &Cell| match cell {
        Cell::One(Op { kind: Kind::BackwardWeight, .. }) => None,
        Cell::One(op @ Op { kind: Kind::Backward, .. }) => {
            Some(Cell::One(Op { kind: Kind::BackwardInput, ..*op }))
        }
        cell => Some(*cell),
    };
    let inputs = timetable.rows.iter().map(|row| row.iter().filter_map(input).collect()).collect();
    work.max(makespan(&Timetable { rows: inputs, ..timetable.clone() }, costs))
}

/// A lower bound on the time of its work with all recomputations.
fn least_with_recomputations(timetable: &Timetable, costs: &impl Costs) -> f64 {
    let rules = Rules::of(timetable);
    let of_row = |(worker, row): (WorkerId, &Vec<Cell>)| {
        let of_op = |op: &Op| {
            let has = op.kind.eats_saved() && !rules.is_recomputed(op.pipe, op.stage);
            if has { costs.op(worker, &Op { kind: Kind::Recompute, ..*op }) } else { 0.0 }
        };
        let of_cell = |cell: &Cell| {
            let again: f64 = cell.ops().map(|op| of_op(&op)).sum();
            least_of_cell(costs, worker, cell) + again
        };
        row.iter().map(of_cell).sum::<f64>()
    };
    rows(timetable).map(of_row).fold(0.0, f64::max)
}

fn rows(timetable: &Timetable) -> impl Iterator<Item = (WorkerId, &Vec<Cell>)> {
    (0..).map(WorkerId).zip(&timetable.rows)
}

fn least_of_cell(costs: &impl Costs, worker: WorkerId, cell: &Cell) -> f64 {
    let apart: f64 = cell.ops().map(|op| costs.op(worker, &op)).sum();
    of_cell(costs, worker, cell).min(apart)
}
