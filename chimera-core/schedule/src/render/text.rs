//! Drawings in plain text, one line per worker.
//!
//! In all of them `3` is the forward pass of micro-batch 3, `3'` its backward pass, `3i` and `3w` the
//! input and weight halves of that, `3r` a recompute, `0-1` a span, `3+1'` a pair and `.` idle time. A
//! worker with several stages of one pipe tells them apart by a letter: `a3`, `b3`. `u2` is the
//! optimizer's update of bucket 2. Gradient reductions, `g2`, run beside a worker's row: they share a line below it,
//! which begins with `+` and is filled up with `+` while any of them runs. Moves of saved activations share a line that
//! begins with `>`: `3o` offloads those of micro-batch 3, `3l` reloads them, `3t` returns them to the worker that does.
//! `3x` is a piece of work beside the training, `3y` one of a second such work; [`work_marks`] says which is which.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::screen::{Line, Picture, Screen};
use super::{
    UNDRAWN_MOVES, WorkerRow, goes_up, has_undrawn_moves, n_pipes, number, row_labels, rows,
    work_label,
};
use crate::analyze::{Event, Timeline, Work};
use crate::ir::ids::{PipeId, WorkId};
use crate::ir::notation::{Labels, work_mark};
use crate::ir::op::{Cell, Kind, Op};

/// Drawings with more columns than this are scaled, since nobody reads them column by column.
const MAX_COLUMNS: usize = 2000;
/// Drawings in which an op needs more columns than this are scaled: lines would be many screens of filling.
const MAX_OP_COLUMNS: f64 = 8.0;
/// Width of a scaled drawing, in characters.
const SCALED_WIDTH: usize = 100;

/// The timeline with one column per unit of time.
///
/// The unit is the greatest common divisor of all starts and ends. Work of several columns is filled
/// up with `-`. Where there is no such unit, as in measured times, or an op lasts many of them, as where ops
/// take 0.37 and 0.77, it is drawn [`scaled`].
///
/// ```text
/// P0 0 1 . . 0'- . 1'-
/// P1 . 0 0'- 1 1'- . .
/// ```
pub fn timeline(timeline: &Timeline) -> String {
    timeline_on(timeline, Screen::PLAIN)
}

/// The [`timeline`] on a screen: what is wider is cut into bands of columns, one below the other.
pub fn timeline_on(timeline: &Timeline, screen: Screen<'_>) -> String {
    let Some(unit) = unit(timeline) else {
        return scaled_on(timeline, SCALED_WIDTH, screen);
    };
    let mut drawing = columns(timeline, unit, screen);
    if has_undrawn_moves(timeline) {
        let _ = writeln!(drawing, "{UNDRAWN_MOVES}");
    }
    drawing
}

/// The timeline squeezed or stretched to `width` characters of equal time.
///
/// Work is filled up with `-` (forward) and `=` (backward) on a pipe that goes down, `~` and `≈` on one
/// that goes up, and named where there is room.
pub fn scaled(timeline: &Timeline, width: usize) -> String {
    scaled_on(timeline, width, Screen::PLAIN)
}

/// The [`scaled`] timeline on a screen, as wide as that is, or else of `width` characters.
pub fn scaled_on(timeline: &Timeline, width: usize, screen: Screen<'_>) -> String {
    let makespan = timeline.makespan();
    let mut picture = Picture::new(timeline.n_workers, screen);
    let width = picture.room().unwrap_or(width);
    let n_pipes = n_pipes(timeline);
    let scale = Scale { unit: makespan / width as f64, n_columns: width, column: 1 };
    for (worker, row) in rows(timeline).iter().enumerate() {
        let labels = row_labels(&row.compute);
        let mut line = Line::default();
        for block in scale.blocks(&row.compute) {
            line.fill(block.from, '.');
            let label = work_label(&labels, block.event.work);
            let shown = if label.len() < block.to - block.from { label.as_str() } else { "" };
            line.work(block.pipe(), shown, fill(block.event.work, n_pipes), block.to);
        }
        line.fill(width, '.');
        picture.worker(worker, &line.0);
        picture.lane('>', &scale.moves(row, &labels).0);
        picture.lane('+', &scale.reductions(row, &labels).0);
    }
    let beside = marks_beside(timeline);
    let legend = match n_pipes {
        0 | 1 => "- forward, = backward",
        _ => "- forward, = backward, in the other direction ~ and ≈",
    };
    let beside = match &beside[..] {
        "" => String::new(),
        marks => format!(", {marks} work beside them"),
    };
    let moves = match has_undrawn_moves(timeline) {
        true => format!("; {UNDRAWN_MOVES}"),
        false => String::new(),
    };
    let _ = writeln!(
        picture.text,
        "{legend}{beside}; + reduction, * update, . idle{moves}; total time {}",
        number(makespan)
    );
    picture.text
}

/// What the marks of works of these names stand for in a drawing, such as `x factors, y inverses`.
pub fn work_marks<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mark = |(nth, name): (u8, &str)| format!("{} {name}", work_mark(WorkId(nth)));
    (0..=u8::MAX).zip(names).map(mark).collect::<Vec<_>>().join(", ")
}

fn columns(timeline: &Timeline, unit: f64, screen: Screen<'_>) -> String {
    let rows = rows(timeline);
    let labels: Vec<Labels> = rows.iter().map(|row| row_labels(&row.compute)).collect();
    let n_columns = (timeline.makespan() / unit).round() as usize;
    // A label of work that lasts k columns may be as wide as they and the gaps between them.
    let width = rows
        .iter()
        .zip(&labels)
        .flat_map(|(row, labels)| {
            let beside = row.moves.iter().chain(row.reductions.iter().flatten());
            let events = row.compute.iter().chain(beside);
            events.map(move |e| (work_label(labels, e.work).len(), (e.end - e.start) / unit))
        })
        .map(|(len, lasts)| (len + 1).div_ceil(lasts.round().max(1.0) as usize) - 1)
        .fold(1, usize::max);
    let scale = Scale { unit, n_columns, column: width + 1 };
    let lines = rows.iter().zip(&labels);
    let lines: Vec<[Line; 3]> = lines
        .map(|(row, labels)| {
            [scale.compute(row, labels), scale.moves(row, labels), scale.reductions(row, labels)]
        })
        .collect();

    let mut picture = Picture::new(timeline.n_workers, screen);
    // The last column needs no gap behind it.
    let is_narrow = picture.room().is_some_and(|room| n_columns * scale.column > room + 1);
    let of_a_band = match picture.room() {
        Some(room) if is_narrow => (room / scale.column).max(1),
        _ => n_columns.max(1),
    };
    for from in (0..n_columns.max(1)).step_by(of_a_band) {
        let to = (from + of_a_band).min(n_columns);
        if is_narrow {
            let _ = writeln!(picture.text, "cells {} to {to} of {n_columns}:", from + 1);
        }
        for (worker, [compute, moves, reductions]) in lines.iter().enumerate() {
            let band = from * scale.column..to * scale.column;
            picture.worker(worker, &compute.0[band.clone()]);
            picture.lane('>', &moves.0[band.clone()]);
            picture.lane('+', &reductions.0[band]);
        }
    }
    picture.text
}

/// How time becomes characters.
struct Scale {
    /// Time of a column.
    unit: f64,
    n_columns: usize,
    /// Characters of a column, with the gap behind it if it is of several.
    column: usize,
}

impl Scale {
    /// The columns of `events`, in order, without overlap and none beyond the last; those that round to
    /// nothing are left out.
    fn blocks<'a>(&self, events: &[&'a Event]) -> Vec<Block<'a>> {
        let column = |time: f64| ((time / self.unit).round() as usize).min(self.n_columns);
        let mut at = 0;
        let mut blocks = Vec::new();
        for &event in events {
            let (from, to) = (column(event.start).max(at), column(event.end));
            if from < to {
                blocks.push(Block { event, from, to });
                at = to;
            }
        }
        blocks
    }

    /// A row of cells.
    fn compute(&self, row: &WorkerRow<'_>, labels: &Labels) -> Line {
        let idle = format!("{:width$}", '.', width = self.column);
        let idle_to = |line: &mut Line, column: usize| {
            while line.0.len() < column * self.column {
                line.push(None, &idle);
            }
        };
        let mut line = Line::default();
        for block in self.blocks(&row.compute) {
            idle_to(&mut line, block.from);
            let with = if block.to - block.from == 1 { ' ' } else { '-' };
            let label = work_label(labels, block.event.work);
            line.work(block.pipe(), &label, with, block.to * self.column - 1);
            line.push(None, " ");
        }
        idle_to(&mut line, self.n_columns);
        line
    }

    /// The moves of a worker.
    fn moves(&self, row: &WorkerRow<'_>, labels: &Labels) -> Line {
        self.beside(row.moves.clone(), labels, '-')
    }

    /// The reductions of a worker, which may overlap.
    fn reductions(&self, row: &WorkerRow<'_>, labels: &Labels) -> Line {
        self.beside(row.reductions.iter().flatten().copied().collect(), labels, '+')
    }

    /// A line of what runs beside a row.
    fn beside(&self, mut events: Vec<&Event>, labels: &Labels, with: char) -> Line {
        let mut line = vec![' '; self.n_columns * self.column];
        events.sort_by(|a, b| a.start.total_cmp(&b.start));
        let gap = usize::from(self.column > 1);
        let span = |b: &Block<'_>| b.from * self.column..b.to * self.column - gap;
        let blocks: Vec<_> = events.iter().flat_map(|event| self.blocks(&[*event])).collect();
        for block in &blocks {
            line[span(block)].fill(with);
        }
        let mut free = 0;
        for block in &blocks {
            let (label, span) = (work_label(labels, block.event.work), span(block));
            let from = span.start.max(free);
            if from + label.len() <= span.end {
                for (at, letter) in line[from..].iter_mut().zip(label.chars()) {
                    *at = letter;
                }
                free = from + label.len() + 1;
            }
        }
        Line(line.into_iter().map(|letter| (letter, None)).collect())
    }
}

/// An event in columns, `from..to`.
struct Block<'a> {
    event: &'a Event,
    from: usize,
    to: usize,
}

impl Block<'_> {
    /// The pipe that its work belongs to.
    fn pipe(&self) -> Option<PipeId> {
        last_op(self.event.work).map(|op| op.pipe)
    }
}

/// The greatest unit of which all starts and ends are multiples, if it makes a drawing of at most
/// [`MAX_COLUMNS`] and no op of more than [`MAX_OP_COLUMNS`].
fn unit(timeline: &Timeline) -> Option<f64> {
    let least = timeline.makespan() / MAX_COLUMNS as f64;
    let tolerance = least * 1e-3;
    let times = || timeline.events.iter().flat_map(|e| [e.start, e.end]);
    let mut unit = 0.0;
    for time in times() {
        let (mut a, mut b) = (unit, time);
        while b > tolerance {
            (a, b) = (b, a % b);
            // Rounding may leave a remainder just below the divisor instead of just above 0.
            if a - b < tolerance {
                b = 0.0;
            }
        }
        unit = a;
    }
    let whole = |time: f64| (time / unit - (time / unit).round()).abs() < 1e-2;
    let ops = timeline.events.iter().filter(|event| matches!(event.work, Work::Cell(_)));
    let longest = ops.map(|event| event.end - event.start).fold(0.0, f64::max);
    let is_short = (longest / unit).round() <= MAX_OP_COLUMNS;
    (unit >= least && unit > 0.0 && is_short && times().all(whole)).then_some(unit)
}

/// The op that gives work its look.
fn last_op(work: Work) -> Option<Op> {
    match work {
        Work::Cell(Cell::One(op) | Cell::Pair(_, op)) => Some(op),
        Work::Move(op) => Some(op),
        Work::Reduce(_) | Work::Step(_) => None,
    }
}

/// The characters that fill up work beside the training, one after the other.
fn marks_beside(timeline: &Timeline) -> String {
    let works = timeline.events.iter().filter_map(|event| match last_op(event.work)?.kind {
        Kind::Work(work) => Some(filled_with(work)),
        _ => None,
    });
    works.collect::<BTreeSet<char>>().into_iter().map(String::from).collect::<Vec<_>>().join(" ")
}

/// The first character of its mark.
fn filled_with(work: WorkId) -> char {
    work_mark(work).chars().next().unwrap_or('x')
}

fn fill(work: Work, n_pipes: usize) -> char {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ids::{BucketId, PipeId, StageId, WorkerId};
    use crate::ir::op::Span;

    /// The timeline of a picture with columns of `unit`, all of pipe 0 and stage 0.
    fn drawn(picture: &str, unit: f64) -> Timeline {
        let mut timeline = Timeline::default();
        for (worker, line) in picture.lines().enumerate() {
            timeline.n_workers += 1;
            let mut at = 0.0;
            for block in line.split_whitespace().skip(1) {
                let label = block.trim_end_matches('-');
                let start = at;
                at += unit * (1 + (block.len() - label.len()).div_ceil(2)) as f64;
                if label != "." {
                    let id = label.trim_end_matches('\'');
                    let kind = match id == label {
                        true => Kind::Forward,
                        false => Kind::Backward,
                    };
                    let op = Op::new(kind, PipeId(0), StageId(0), id.parse().unwrap());
                    timeline.events.push(Event {
                        worker: WorkerId(worker as u16),
                        work: Work::Cell(op.into()),
                        start,
                        end: at,
                        after: None,
                    });
                }
            }
        }
        timeline
    }

    const ONE_F_ONE_B: &str = "\
P0 0 1 . . 0'- . 1'-
P1 . 0 0'- 1 1'- . .
";

    #[test]
    fn columns_are_the_unit_of_time() {
        for unit in [1.0, 0.1, 1.0 / 3.0, 1e-6, 4096.0] {
            assert_eq!(timeline(&drawn(ONE_F_ONE_B, unit)), ONE_F_ONE_B);
        }
    }

    #[test]
    fn an_op_of_many_columns_makes_a_scaled_drawing() {
        let picture = |columns: usize| format!("P0 0 1 0'{}\n", "-".repeat(2 * columns - 3));
        assert_eq!(timeline(&drawn(&picture(8), 0.25)), picture(8));
        let long = drawn(&picture(9), 0.25);
        assert_eq!(timeline(&long), scaled(&long, SCALED_WIDTH));
    }

    #[test]
    fn works_are_told_apart_by_their_marks() {
        let events = (0..2u8).map(|nth| Event {
            worker: WorkerId(0),
            work: Work::Cell(Op::new(Kind::Work(WorkId(nth)), PipeId(0), StageId(0), 0).into()),
            start: f64::from(nth),
            end: f64::from(nth) + 1.0,
            after: None,
        });
        let works = Timeline { n_workers: 1, events: events.collect() };
        assert_eq!(timeline(&works), "P0 0x 0y\n");
        let drawing = scaled(&works, 8);
        assert!(drawing.starts_with("P0 0xxx0yyy\n"), "{drawing}");
        assert!(drawing.contains(", x y work beside them;"), "{drawing}");
        assert_eq!(work_marks(["factors", "inverses"]), "x factors, y inverses");
    }

    #[test]
    fn all_kinds_of_work() {
        let op = |kind, stage, unit| Op::new(kind, PipeId(0), StageId(stage), unit);
        let mut span = op(Kind::Forward, 0, 0);
        span.span = Span { start: 0, len: 2 };
        let pair = Cell::Pair(op(Kind::Forward, 0, 3), op(Kind::Backward, 2, 1));
        let work = [
            (Work::Cell(span.into()), 0.0, 1.0),
            (Work::Cell(op(Kind::Recompute, 2, 1).into()), 1.0, 2.0),
            (Work::Cell(op(Kind::BackwardInput, 2, 12).into()), 2.0, 3.0),
            (Work::Cell(pair), 3.0, 6.0),
            (Work::Reduce(BucketId(0)), 4.0, 6.0),
            (Work::Reduce(BucketId(1)), 5.0, 7.0),
            (Work::Cell(op(Kind::BackwardWeight, 0, 7).into()), 6.0, 7.0),
            (Work::Step(BucketId(0)), 7.0, 7.0),
            (Work::Step(BucketId(1)), 7.0, 8.0),
        ];
        let events = work.map(|(work, start, end)| Event {
            worker: WorkerId(0),
            work,
            start,
            end,
            after: None,
        });
        let all = Timeline { n_workers: 1, events: events.to_vec() };
        assert_eq!(
            timeline(&all),
            "\
P0 a0-1 b1r  b12i a3+b1'-------- a7w  u1
 +                     g0+++g1+++++++
"
        );
    }

    #[test]
    fn irregular_times_are_scaled() {
        let mut measured = drawn(ONE_F_ONE_B, 0.01);
        for (event, nth) in measured.events.iter_mut().zip(1..) {
            event.start += 1e-3 / f64::from(nth).sqrt();
        }
        assert_eq!(scaled(&measured, 0).lines().count(), 3);
        assert_eq!(
            scaled(&measured, 40),
            "\
P0 0---.1---.........0'=======....1'=======
P1 .....0---0'=======1---1'=======.........
- forward, = backward; + reduction, * update, . idle; total time 0.09
"
        );
        assert_eq!(timeline(&measured), scaled(&measured, SCALED_WIDTH));
    }

    #[test]
    fn what_is_wider_than_the_screen_is_cut_into_bands() {
        let drawing = drawn(ONE_F_ONE_B, 1.0);
        let on = |width| timeline_on(&drawing, Screen { width: Some(width), ..Screen::PLAIN });
        assert_eq!(on(20), ONE_F_ONE_B);
        assert_eq!(
            on(13),
            "\
cells 1 to 5 of 9:
P0 0 1 . . 0'
P1 . 0 0'- 1
cells 6 to 9 of 9:
P0 - . 1'-
P1 1'- . .
"
        );
        assert!(on(1).lines().filter(|line| line.starts_with("P0 ")).count() == 9);
        let one_scaled =
            |width| scaled_on(&drawing, 40, Screen { width: Some(width), ..Screen::PLAIN });
        assert_eq!(one_scaled(43), scaled(&drawing, 40));
    }

    #[test]
    fn work_is_painted_by_its_pipe() {
        let paint = |pipe: PipeId, text: &str| format!("<{}:{text}>", pipe.0);
        let painted =
            timeline_on(&drawn("P0 0 . 0'-\n", 1.0), Screen { width: None, paint: &paint });
        assert_eq!(painted, "P0 <0:0> . <0:0'->\n");
    }

    #[test]
    fn senseless_times_are_drawn_somehow() {
        for (start, end) in [(0.0, f64::INFINITY), (f64::NAN, 1.0), (-5.0, -1.0), (3.0, 1.0)] {
            let mut timeline = drawn(ONE_F_ONE_B, 1.0);
            timeline.events[1].start = start;
            timeline.events[1].end = end;
            timeline.events[2].worker = WorkerId(9);
            assert!(super::timeline(&timeline).starts_with("P0 "));
        }
        assert_eq!(timeline(&Timeline::default()).lines().count(), 1);
    }
}
