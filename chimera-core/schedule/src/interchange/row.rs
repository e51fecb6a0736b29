//! One row of a timetable as text, as drawings and refusals write it: `0 1 0' 1'`.
//!
//! A cell is an op, or a pair such as `3+1'`. An op is its micro-batches, `3` or `0-1`, and the mark
//! of its kind: none for a forward, `'` for a backward, `i` and `w` for its halves, `r` for a
//! recomputation, `o`, `l`, `k` and `t` for moves. A letter in front tells apart the stages of a
//! pipe on this worker, `a` first.
//!
//! Text leaves out pipes and stages that follow from the row, so a row is read beside a timetable
//! that has them.

use rustc_hash::FxHashMap;

use crate::ir::ids::{PipeId, WorkerId};
use crate::ir::notation::Labels;
use crate::ir::op::{Cell, Kind, Op, Span};
use crate::ir::timetable::Timetable;

/// Marks of kinds after micro-batches.
const MARKS: [(&str, Kind); 9] = [
    ("", Kind::Forward),
    ("'", Kind::Backward),
    ("i", Kind::BackwardInput),
    ("w", Kind::BackwardWeight),
    ("r", Kind::Recompute),
    ("o", Kind::Offload),
    ("l", Kind::Reload),
    ("k", Kind::Keep),
    ("t", Kind::Return),
];

/// Text that is not a row of a timetable.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{worker}, cell {cell}: `{text}` {reason}")]
pub struct NotARow {
    /// The worker of the row.
    pub worker: WorkerId,
    /// The index of the cell.
    pub cell: usize,
    /// The text of the cell.
    pub text: String,
    /// The mistake, and what to write instead.
    pub reason: String,
}

/// The row of a worker as text.
pub fn row_to_text(timetable: &Timetable, worker: WorkerId) -> String {
    let row = timetable.row(worker);
    let labels = Labels::new(row.iter().copied());
    row.iter().map(|cell| labels.cell(*cell)).collect::<Vec<_>>().join(" ")
}

/// A reader of the rows of one timetable.
pub struct RowReader<'t> {
    timetable: &'t Timetable,
    /// The pipe of each unit of a micro-batch.
    pipes: FxHashMap<u32, PipeId>,
}

impl<'t> RowReader<'t> {
    /// A reader of rows with the micro-batches and stages of `timetable`.
    pub fn new(timetable: &'t Timetable) -> RowReader<'t> {
        let ops = timetable.ops().flat_map(|op| op.span.units().map(move |unit| (unit, op.pipe)));
        RowReader { timetable, pipes: ops.collect() }
    }

    /// Reads the row of a worker. The proof decides whether it is sound.
    ///
    /// # Errors
    /// If a cell is not written as [`row_to_text`] writes it, or names a micro-batch or stage that
    /// is not there.
    pub fn read(&self, worker: WorkerId, text: &str) -> Result<Vec<Cell>, NotARow> {
        let labels = Labels::new(self.timetable.row(worker).iter().copied());
        let cell = |(cell, text): (usize, &str)| {
            self.cell(&labels, text).map_err(|reason| {
                let text = text.chars().take(40).collect();
                NotARow { worker, cell, text, reason }
            })
        };
        text.split_whitespace().enumerate().map(cell).collect()
    }

    fn cell(&self, labels: &Labels, text: &str) -> Result<Cell, String> {
        match text.split_once('+') {
            None => Ok(Cell::One(self.op(labels, text)?)),
            Some((a, b)) => Ok(Cell::Pair(self.op(labels, a)?, self.op(labels, b)?)),
        }
    }

    fn op(&self, labels: &Labels, text: &str) -> Result<Op, String> {
        let n_letters =
            text.len() - text.trim_start_matches(|c: char| c.is_ascii_lowercase()).len();
        let (letters, rest) = text.split_at(n_letters);
        let is_span = |c: char| c.is_ascii_digit() || c == '-';
        let (span, mark) = rest.split_at(rest.len() - rest.trim_start_matches(is_span).len());
        let kind = MARKS.iter().find(|(known, _)| *known == mark).map(|(_, kind)| *kind);
        let (Some(span), Some(kind)) = (read_span(span), kind) else {
            return Err("is not a cell: write 3 for the forward of micro-batch 3, 3' for its backward, 3i and 3w \
                        for the halves, b3 on a second stage"
                .into());
        };
        let pipe = self.pipes.get(&span.start).copied();
        let pipe = pipe.ok_or_else(|| {
            format!("names micro-batch {}, which the schedule does not have", span.start)
        })?;
        let stage = labels.stage(pipe, letters);
        let stage = stage
            .ok_or("names a stage that the row does not have: give it the letters of the row")?;
        Ok(Op { kind, pipe, stage, span })
    }
}

/// Reads `3` or `0-1`.
fn read_span(text: &str) -> Option<Span> {
    let Some((first, last)) = text.split_once('-') else {
        return text.parse().ok().map(Span::one);
    };
    let (start, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
    let len = last.checked_sub(start)?.checked_add(1)?;
    Some(Span { start, len: u16::try_from(len).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{SCHEDULES, Scaling, Shape, find};

    #[test]
    fn every_row_is_read_as_it_is_written() {
        let shape = Shape::new(4, 12);
        for scaling in [Scaling::Direct, Scaling::Doubling, Scaling::Halving] {
            for schedule in SCHEDULES {
                let timetable = schedule.timetable(&Shape { scaling, ..shape }).expect("fits");
                let reader = RowReader::new(&timetable);
                for (worker, row) in (0..).map(WorkerId).zip(&timetable.rows) {
                    let text = row_to_text(&timetable, worker);
                    assert_eq!(reader.read(worker, &text).as_ref(), Ok(row), "{text}");
                }
            }
        }
    }

    #[test]
    fn mistakes_name_the_cell() {
        let timetable = find("zb-v").unwrap().timetable(&Shape::new(2, 4)).unwrap();
        let reader = RowReader::new(&timetable);
        let refused = |text| reader.read(WorkerId(1), text).expect_err("refused").to_string();
        for (text, reason) in [
            ("a0 b0 a1x", "worker 1, cell 2: `a1x` is not a cell: write 3 for"),
            ("a0 b", "worker 1, cell 1: `b` is not a cell"),
            ("a9", "worker 1, cell 0: `a9` names micro-batch 9, which the schedule does not have"),
            ("3", "worker 1, cell 0: `3` names a stage that the row does not have"),
            ("c3", "worker 1, cell 0: `c3` names a stage that the row does not have"),
            ("a3-1", "worker 1, cell 0: `a3-1` is not a cell"),
            ("a0-99999999", "worker 1, cell 0: `a0-99999999` is not a cell"),
            ("a0+b0'+a1", "worker 1, cell 0: `a0+b0'+a1` is not a cell"),
        ] {
            assert!(refused(text).starts_with(reason), "{}", refused(text));
        }
    }
}
