//! The tool for schedules of counted loops: a row is a few patterns, each repeated some times.
//!
//! A pattern has the kind of each pass and its lane; the lane counts the micro-batches. If a lane
//! has run out, its place in the pattern stays empty, so that no loop has to handle few
//! micro-batches.

use std::collections::VecDeque;
use std::ops::Range;

use super::{Schedule, Shape};
use crate::ir::ids::{PipeId, StageId};
use crate::ir::op::{Cell, Kind, Op};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;

/// The next pass of a row; the numbers are lanes.
#[derive(Clone, Copy)]
pub enum Next {
    /// A forward.
    F(usize),
    /// A whole backward.
    B(usize),
    /// The input half of a backward.
    I(usize),
    /// The weight half of the oldest input half without one, in any lane.
    W,
    /// A forward and a whole backward as one atomic step.
    FB(usize, usize),
}

/// The timetable with the rows that `row` makes, worker by worker.
pub fn timetable(
    schedule: &dyn Schedule,
    shape: &Shape,
    placement: Placement,
    row: impl Fn(usize) -> PhaseRow,
) -> Timetable {
    let rows = (0..placement.n_workers()).map(|worker| row(worker).cells).collect();
    Timetable::new(schedule.name(), placement, shape.n_micro_batches, rows)
}

/// A micro-batch on a stage of a pipe: `(pipe, stage, micro-batch)`.
pub type Visit = (usize, usize, u32);

/// The micro-batches of a worker in a fixed order, separate for each direction.
pub struct PhaseQueue {
    forwards: Box<dyn Iterator<Item = Visit>>,
    backwards: Box<dyn Iterator<Item = Visit>>,
}

impl PhaseQueue {
    /// A range of micro-batches on one stage of one pipe.
    pub fn new(pipe: usize, stage: usize, micros: Range<u32>) -> PhaseQueue {
        let visits = micros.map(move |micro| (pipe, stage, micro));
        PhaseQueue::of(visits.clone(), visits)
    }

    /// A queue with any order of forwards and of backwards.
    pub fn of(
        forwards: impl Iterator<Item = Visit> + 'static,
        backwards: impl Iterator<Item = Visit> + 'static,
    ) -> PhaseQueue {
        PhaseQueue { forwards: Box::new(forwards), backwards: Box::new(backwards) }
    }
}

/// The row of one worker, pattern by pattern.
pub struct PhaseRow {
    lanes: Vec<PhaseQueue>,
    /// Input halves without their weight half, the oldest first.
    deferred: VecDeque<Op>,
    cells: Vec<Cell>,
}

impl PhaseRow {
    /// A row without cells, with the queues from which its patterns take.
    pub fn new(lanes: impl Into<Vec<PhaseQueue>>) -> PhaseRow {
        PhaseRow { lanes: lanes.into(), deferred: VecDeque::new(), cells: Vec::new() }
    }

    /// Continues the row with `times` repetitions of `pattern`.
    pub fn repeat(mut self, times: u32, pattern: &[Next]) -> PhaseRow {
        for _ in 0..times {
            for next in pattern {
                let cell = self.cell(*next);
                self.cells.extend(cell);
            }
        }
        self
    }

    fn cell(&mut self, next: Next) -> Option<Cell> {
        match next {
            Next::F(lane) => self.op(Kind::Forward, lane).map(Cell::One),
            Next::B(lane) => self.op(Kind::Backward, lane).map(Cell::One),
            Next::I(lane) => {
                let input = self.op(Kind::BackwardInput, lane)?;
                self.deferred.push_back(input);
                Some(Cell::One(input))
            }
            Next::W => {
                let input = self.deferred.pop_front()?;
                Some(Cell::One(Op { kind: Kind::BackwardWeight, ..input }))
            }
            Next::FB(forward, backward) => {
                match (self.op(Kind::Forward, forward), self.op(Kind::Backward, backward)) {
                    (Some(forward), Some(backward)) => Some(Cell::Pair(forward, backward)),
                    (forward, backward) => forward.or(backward).map(Cell::One),
                }
            }
        }
    }

    fn op(&mut self, kind: Kind, lane: usize) -> Option<Op> {
        let PhaseQueue { forwards, backwards } = &mut self.lanes[lane];
        let (pipe, stage, micro) =
            if kind == Kind::Forward { forwards.next() } else { backwards.next() }?;
        Some(Op::new(kind, PipeId(pipe as u16), StageId(stage as u16), micro))
    }
}

#[cfg(test)]
mod tests {
    use super::Next::*;
    use super::*;
    use crate::ir::notation::marked_row;

    #[test]
    fn a_lane_that_has_run_out_leaves_its_place_empty() {
        let row = PhaseRow::new([PhaseQueue::new(0, 0, 0..2), PhaseQueue::new(1, 3, 2..5)])
            .repeat(3, &[F(0)])
            .repeat(2, &[F(1), I(0)])
            .repeat(2, &[FB(1, 1)])
            .repeat(3, &[I(1), W, B(0)]);
        assert_eq!(marked_row(&row.cells, 0), "0 1 2 0i 3 1i 4+2' 3' 4i 0w 1w 4w\n^");
    }
}
