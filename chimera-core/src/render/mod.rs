//! Drawings of timetables and timelines, and traces for other programs to draw.
//!
//! Every drawing is a function of its input alone, so that it can stand in a test as the expected
//! value.

pub mod chrome;
pub mod html;
mod legend;
mod palette;
pub mod svg;
pub mod text;
mod xml;

use std::collections::BTreeSet;

use crate::analyze::{Event, Timeline, Work};
use crate::ids::{PipeId, StageId};
use crate::op::{Cell, Kind, Op};

/// How the ops of one row are written.
///
/// A micro-batch id belongs to one pipe, so it says which pipe is meant. The stage is left out too,
/// unless the row has several stages of one pipe: they are then told apart by a letter, `a` first.
struct Labels {
    stages: BTreeSet<(PipeId, StageId)>,
    lettered: bool,
}

impl Labels {
    fn new(cells: impl Iterator<Item = Cell>) -> Labels {
        let stages: BTreeSet<_> =
            cells.flat_map(|cell| cell.ops()).map(|op| (op.pipe, op.stage)).collect();
        let pipes: BTreeSet<_> = stages.iter().map(|&(pipe, _)| pipe).collect();
        let lettered = stages.len() > pipes.len();
        Labels { stages, lettered }
    }

    fn of_events(events: &[&Event]) -> Labels {
        Labels::new(events.iter().filter_map(|event| match event.work {
            Work::Cell(cell) => Some(cell),
            _ => None,
        }))
    }

    /// Micro-batches of `op`, after the letter of its stage: `3`, `b3`, `0-1`.
    fn micro_batches(&self, op: Op) -> String {
        if !self.lettered {
            return op.span.to_string();
        }
        let before = (op.pipe, StageId(0))..(op.pipe, op.stage);
        let nth = self.stages.range(before).count();
        match u8::try_from(nth) {
            Ok(nth @ 0..26) => format!("{}{}", char::from(b'a' + nth), op.span),
            _ => format!("{}:{}", op.stage.0, op.span),
        }
    }

    /// `op` with the mark of its kind: `3` forward, `3'` backward, `3i` and `3w` its halves, `3r`
    /// recompute.
    fn op(&self, op: Op) -> String {
        let mark = match op.kind {
            Kind::Forward => "",
            Kind::Backward => "'",
            Kind::BackwardInput => "i",
            Kind::BackwardWeight => "w",
            Kind::Recompute => "r",
        };
        self.micro_batches(op) + mark
    }

    /// The ops of `cell`, a pair as `3+1'`.
    fn cell(&self, cell: Cell) -> String {
        let ops: Vec<String> = cell.ops().map(|op| self.op(op)).collect();
        ops.join("+")
    }

    /// A cell, `g2` for the sum of bucket 2's gradients, or `u2` for its update.
    fn work(&self, work: Work) -> String {
        match work {
            Work::Cell(cell) => self.cell(cell),
            Work::Reduce(bucket) => format!("g{}", bucket.0),
            Work::Step(bucket) => format!("u{}", bucket.0),
        }
    }
}

/// What one worker does.
struct Row<'a> {
    /// In its own time: one after the other.
    compute: Vec<&'a Event>,
    /// Beside it: in as few lanes as show no reduction over another.
    reductions: Vec<Vec<&'a Event>>,
}

impl<'a> Row<'a> {
    fn reduce(&mut self, event: &'a Event) {
        let free = |lane: &&mut Vec<&Event>| lane.last().is_none_or(|e| e.end <= event.start);
        match self.reductions.iter_mut().find(free) {
            Some(lane) => lane.push(event),
            None => self.reductions.push(vec![event]),
        }
    }
}

/// The events of each worker that take time.
fn rows(timeline: &Timeline) -> Vec<Row<'_>> {
    let mut rows: Vec<Row> = (0..timeline.n_workers)
        .map(|_| Row { compute: Vec::new(), reductions: Vec::new() })
        .collect();
    for event in timeline.events.iter().filter(|e| e.end > e.start) {
        if let Some(row) = rows.get_mut(event.worker.index()) {
            match event.work {
                Work::Reduce(_) => row.reduce(event),
                _ => row.compute.push(event),
            }
        }
    }
    rows
}

/// Number of pipes that a timeline shows: one more than the greatest id.
fn n_pipes(timeline: &Timeline) -> usize {
    let cells = timeline.events.iter().filter_map(|event| match event.work {
        Work::Cell(cell) => Some(cell),
        _ => None,
    });
    let pipes = cells.flat_map(|cell| cell.ops()).map(|op| op.pipe.index());
    pipes.max().map_or(0, |last| last + 1)
}

/// Whether `pipe` of `n_pipes` goes up: the second half of an even number of them does.
fn goes_up(pipe: PipeId, n_pipes: usize) -> bool {
    n_pipes.is_multiple_of(2) && pipe.index() >= n_pipes / 2
}

/// `x` with four significant digits, as in drawings.
fn number(x: f64) -> String {
    significant(x, 4)
}

/// `x` with so many significant digits and no trailing zeros, in any unit: what would begin with many zeros
/// is written in powers of ten.
pub fn significant(x: f64, digits: usize) -> String {
    if x == 0.0 || !x.is_finite() {
        return if x == 0.0 { "0".into() } else { x.to_string() };
    }
    let trimmed = |number: &str| match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => number.to_string(),
    };
    let magnitude = x.abs().log10().floor() as i32;
    if magnitude < -4 {
        let text = format!("{x:.*e}", digits.saturating_sub(1));
        let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{power}", trimmed(mantissa));
    }
    let decimals = usize::try_from(digits as i32 - 1 - magnitude).unwrap_or(0);
    trimmed(&format!("{x:.decimals$}"))
}

/// So many bytes, in the largest unit of which there is one.
pub fn size(bytes: f64) -> String {
    let units = [("GiB", 1u32 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let fits = |(_, unit): &(&str, u32)| bytes.abs() >= f64::from(*unit);
    match units.into_iter().find(fits) {
        Some((name, unit)) => format!("{} {name}", significant(bytes / f64::from(unit), 3)),
        None => format!("{bytes:.0} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_a_unit_of_which_there_is_one() {
        let sizes = [0.0, 1.0, 2048.0, 1e6, 40.0 * 1048576.0, 355.62e9, 25769803776.0].map(size);
        let wanted = ["0 B", "1 B", "2 KiB", "977 KiB", "40 MiB", "331 GiB", "24 GiB"];
        assert_eq!(sizes, wanted);
    }

    #[test]
    fn numbers_are_short() {
        let written = [0.0, 16.0, 12345.0, 1.0 / 3.0, 0.00123456, 0.1 + 0.2, f64::NAN].map(number);
        assert_eq!(written, ["0", "16", "12345", "0.3333", "0.001235", "0.3", "NaN"]);
        let times = [3e-7, 1.23456789e-8, 1e-300, 999_999.6, -2.0 / 3.0];
        let written = times.map(|x| significant(x, 6));
        assert_eq!(written, ["3e-7", "1.23457e-8", "1e-300", "1000000", "-0.666667"]);
    }

    #[test]
    fn several_stages_of_a_pipe_get_letters() {
        let op = |stage, unit| Op::new(Kind::Backward, PipeId(0), StageId(stage), unit);
        let label = |ops: &[Op], op: Op| Labels::new(ops.iter().map(|&op| op.into())).op(op);
        assert_eq!(label(&[op(1, 0), op(1, 3)], op(1, 3)), "3'");
        assert_eq!(label(&[op(1, 0), op(5, 3)], op(5, 3)), "b3'");
        let many: Vec<Op> = (0..30).map(|stage| op(stage, 0)).collect();
        assert_eq!(label(&many, op(29, 3)), "29:3'");
    }

    #[test]
    fn the_upper_half_of_an_even_number_of_pipes_goes_up() {
        let up = |n_pipes| [0, 1, 2, 3].map(|pipe| goes_up(PipeId(pipe), n_pipes));
        assert_eq!(up(4), [false, false, true, true]);
        assert_eq!(up(1), [false; 4]);
        assert_eq!(up(3), [false; 4]);
    }
}
