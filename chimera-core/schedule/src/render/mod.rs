//! Drawings of timetables and timelines, and traces for other programs to draw.
//!
//! Every drawing is a pure function of its input, so that it can be the expected value of a test.

pub mod chrome;
pub mod html;
mod legend;
mod palette;
pub mod report;
pub mod screen;
pub mod svg;
pub mod text;
mod xml;

pub use palette::tones;

use crate::analyze::{Event, Timeline, Work};
use crate::ir::ids::PipeId;
use crate::ir::notation::{Labels, significant};

/// Labels of the ops among `events`, all of one row.
fn row_labels(events: &[&Event]) -> Labels {
    Labels::new(events.iter().filter_map(|event| match event.work {
        Work::Cell(cell) => Some(cell),
        _ => None,
    }))
}

/// A cell, `g2` for the sum of bucket 2's gradients, or `u2` for its update.
fn work_label(labels: &Labels, work: Work) -> String {
    match work {
        Work::Cell(cell) => labels.cell(cell),
        Work::Reduce(bucket) => format!("g{}", bucket.0),
        Work::Step(bucket) => format!("u{}", bucket.0),
        Work::Move(op) => labels.op(op),
    }
}

/// The events of one worker.
struct WorkerRow<'a> {
    /// Compute and updates, one after the other.
    compute: Vec<&'a Event>,
    /// Moves, one after the other, in parallel to compute.
    moves: Vec<&'a Event>,
    /// Reductions in parallel to compute, in as few lanes as possible without overlap.
    reductions: Vec<Vec<&'a Event>>,
}

impl<'a> WorkerRow<'a> {
    fn reduce(&mut self, event: &'a Event) {
        let free = |lane: &&mut Vec<&Event>| lane.last().is_none_or(|e| e.end <= event.start);
        match self.reductions.iter_mut().find(free) {
            Some(lane) => lane.push(event),
            None => self.reductions.push(vec![event]),
        }
    }
}

/// The events of each worker that take time.
fn rows(timeline: &Timeline) -> Vec<WorkerRow<'_>> {
    let mut rows: Vec<WorkerRow> = (0..timeline.n_workers)
        .map(|_| WorkerRow { compute: Vec::new(), moves: Vec::new(), reductions: Vec::new() })
        .collect();
    for event in timeline.events.iter().filter(|e| e.end > e.start) {
        if let Some(row) = rows.get_mut(event.worker.index()) {
            match event.work {
                Work::Reduce(_) => row.reduce(event),
                Work::Move(_) => row.moves.push(event),
                _ => row.compute.push(event),
            }
        }
    }
    rows
}

/// The note of a drawing that leaves out moves, which have no width.
const UNDRAWN_MOVES: &str = "moves that take no time are not drawn";

/// Returns true if some moves of saved activations take no time.
fn has_undrawn_moves(timeline: &Timeline) -> bool {
    timeline.events.iter().any(|e| matches!(e.work, Work::Move(_)) && e.end <= e.start)
}

/// Number of pipes in a timeline: one more than the greatest id.
fn n_pipes(timeline: &Timeline) -> usize {
    let cells = timeline.events.iter().filter_map(|event| match event.work {
        Work::Cell(cell) => Some(cell),
        _ => None,
    });
    let pipes = cells.flat_map(|cell| cell.ops()).map(|op| op.pipe.index());
    pipes.max().map_or(0, |last| last + 1)
}

/// Returns true if `pipe` of `n_pipes` goes up: the second half of an even number of pipes does.
fn goes_up(pipe: PipeId, n_pipes: usize) -> bool {
    n_pipes.is_multiple_of(2) && pipe.index() >= n_pipes / 2
}

/// `x` with four significant digits, as in drawings.
fn number(x: f64) -> String {
    significant(x, 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::simulate;
    use crate::costs::UniformCosts;
    use crate::lower::{Lowering, bpipe, lower};
    use crate::schedule::{Shape, find};

    #[test]
    fn a_drawing_notes_moves_that_it_leaves_out() {
        let timetable = find("1f1b").unwrap().timetable(&Shape::new(4, 8)).unwrap();
        let free = UniformCosts::new(1.0, 2.0, 0.0);
        let shared = bpipe(timetable.clone(), &free).unwrap();
        let drawn = |timetable, costs| {
            let program = lower(timetable, &Lowering::default()).unwrap();
            let timeline = simulate(&program, &costs);
            let scaled = text::scaled(&timeline, 80);
            let text = text::timeline(&timeline);
            let svg = svg::step(&program, &timeline, "");
            [text, scaled, svg, html::page(&program, &timeline, "")]
        };
        for (plain, noted) in drawn(&timetable, free).iter().zip(drawn(&shared, free)) {
            assert!(noted.contains(UNDRAWN_MOVES) && !plain.contains(UNDRAWN_MOVES), "{noted}");
        }
        let [plain, noted] =
            [&timetable, &shared].map(|timetable| drawn(timetable, free)[0].clone());
        assert_eq!(noted, format!("{plain}{UNDRAWN_MOVES}\n"));
        for drawing in drawn(&shared, UniformCosts { transfer: 0.5, ..free }) {
            assert!(!drawing.contains(UNDRAWN_MOVES), "{drawing}");
        }
    }

    #[test]
    fn the_upper_half_of_an_even_number_of_pipes_goes_up() {
        let up = |n_pipes| [0, 1, 2, 3].map(|pipe| goes_up(PipeId(pipe), n_pipes));
        assert_eq!(up(4), [false, false, true, true]);
        assert_eq!(up(1), [false; 4]);
        assert_eq!(up(3), [false; 4]);
    }
}
