//! The characters that stand for work in a scaled drawing.

use std::collections::BTreeSet;

use crate::analyze::{Timeline, Work};
use crate::ir::ids::WorkId;
use crate::ir::notation::work_mark;
use crate::ir::op::{Cell, Kind, Op};
use crate::render::goes_up;

/// The op that determines the look of work.
pub(super) fn last_op(work: Work) -> Option<Op> {
    match work {
        Work::Cell(Cell::One(op) | Cell::Pair(_, op)) => Some(op),
        Work::Move(op) => Some(op),
        Work::Reduce(_) | Work::Step(_) => None,
    }
}

/// The characters that fill a caller's own works, separated by spaces.
pub(super) fn marks_beside(timeline: &Timeline) -> String {
    let works = timeline.events.iter().filter_map(|event| match last_op(event.work)?.kind {
        Kind::Work(work) => Some(filled_with(work)),
        _ => None,
    });
    works.collect::<BTreeSet<char>>().into_iter().map(String::from).collect::<Vec<_>>().join(" ")
}

/// The first character of the work's mark.
fn filled_with(work: WorkId) -> char {
    work_mark(work).chars().next().unwrap_or('x')
}

pub(super) fn fill(work: Work, n_pipes: usize) -> char {
    let Some(last) = last_op(work) else { return '*' };
    if let Kind::Work(work) = last.kind {
        return filled_with(work);
    }
    let forward = matches!(last.kind, Kind::Forward | Kind::Recompute);
    match (goes_up(last.pipe, n_pipes), forward) {
        (false, true) => '-',
        (false, false) => '=',
        (true, true) => '~',
        (true, false) => '≈',
    }
}
