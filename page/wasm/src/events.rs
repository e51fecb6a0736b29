//! The events of a timeline as bytes that the page reads without parsing: one record per op,
//! update and reduction.

use std::collections::HashSet;

use chimera_schedule::analyze::{Event, Timeline, Work};
use chimera_schedule::costs::{Costs, of_cell};
use chimera_schedule::ids::WorkerId;
use chimera_schedule::op::{Cell, Lane, Op};
use chimera_schedule::timetable::Timetable;

/// Bytes of a record: start and end (f64), cell and first unit (u32), units, stage, pipe and worker
/// (u16), letter, part and whether it is on the critical path (u8), and five bytes of nothing.
pub(crate) const BYTES: usize = 40;

/// The place of an op in its cell.
#[derive(Clone, Copy)]
enum Part {
    Whole = 0,
    First = 1,
    Second = 2,
}

struct Record {
    start: f64,
    end: f64,
    cell: u32,
    worker: WorkerId,
    is_critical: bool,
}

/// The events of a simulated step.
pub(crate) fn of_timeline(timetable: &Timetable, timeline: &Timeline) -> Vec<u8> {
    let critical: HashSet<*const Event> =
        timeline.critical_path().into_iter().map(std::ptr::from_ref).collect();
    let indices = |lane: Lane| {
        let of_row = move |row: &Vec<Cell>| {
            let cells = (0u32..).zip(row).filter(move |(_, cell)| cell.lane() == lane);
            cells.map(|(index, _)| index).collect::<Vec<_>>().into_iter()
        };
        timetable.rows.iter().map(of_row).collect::<Vec<_>>()
    };
    let mut cells = Lane::ALL.map(indices);
    let mut bytes = Vec::with_capacity(timeline.events.len() * BYTES);
    for event in &timeline.events {
        let is_critical = critical.contains(&std::ptr::from_ref(event));
        let mut next = |lane: Lane| {
            let row = cells[lane.index()].get_mut(event.worker.index());
            row.and_then(Iterator::next).unwrap_or(u32::MAX)
        };
        let cell = match event.work {
            Work::Cell(cell) => next(cell.lane()),
            Work::Move(_) => next(Lane::Moves),
            Work::Reduce(_) | Work::Step(_) => u32::MAX,
        };
        let Event { start, end, worker, .. } = *event;
        let record = Record { start, end, cell, worker, is_critical };
        match event.work {
            Work::Cell(cell) => record.cell(cell, &mut bytes),
            Work::Move(op) => record.op(&op, Part::Whole, &mut bytes),
            Work::Reduce(bucket) => record.other(b'G', bucket.0, &mut bytes),
            Work::Step(bucket) => record.other(b'U', bucket.0, &mut bytes),
        }
    }
    bytes
}

/// The rows of a timetable that is refused: cells one after the other, without waiting.
pub(crate) fn of_rows(timetable: &Timetable, costs: &impl Costs) -> Vec<u8> {
    let mut bytes = Vec::new();
    let n_stages = timetable.placement.n_stages();
    for (worker, row) in (0..).map(WorkerId).zip(&timetable.rows) {
        let mut starts = [0.0; 2];
        for (cell, at) in row.iter().zip(0..) {
            let is_known = cell.ops().all(|op| op.stage.index() < n_stages);
            let start = starts[cell.lane().index()];
            let end = start + if is_known { of_cell(costs, worker, cell) } else { 1.0 };
            starts[cell.lane().index()] = end;
            Record { start, end, cell: at, worker, is_critical: false }.cell(*cell, &mut bytes);
        }
    }
    bytes
}

impl Record {
    fn cell(&self, cell: Cell, into: &mut Vec<u8>) {
        match cell {
            Cell::One(op) => self.op(&op, Part::Whole, into),
            Cell::Pair(a, b) => {
                self.op(&a, Part::First, into);
                self.op(&b, Part::Second, into);
            }
        }
    }

    fn op(&self, op: &Op, part: Part, into: &mut Vec<u8>) {
        let letter = op.kind.letter() as u8;
        let ids = [op.span.len, op.stage.0, op.pipe.0];
        self.write(op.span.start, ids, letter, part, into);
    }

    fn other(&self, letter: u8, bucket: u32, into: &mut Vec<u8>) {
        self.write(bucket, [1, 0, 0], letter, Part::Whole, into);
    }

    fn write(&self, unit: u32, ids: [u16; 3], letter: u8, part: Part, into: &mut Vec<u8>) {
        for time in [self.start, self.end] {
            into.extend(time.to_le_bytes());
        }
        for number in [self.cell, unit] {
            into.extend(number.to_le_bytes());
        }
        for id in ids.into_iter().chain([self.worker.0]) {
            into.extend(id.to_le_bytes());
        }
        into.extend([letter, part as u8, u8::from(self.is_critical), 0, 0, 0, 0, 0]);
    }
}
