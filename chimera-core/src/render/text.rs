//! Drawings in plain text, one line per worker.
//!
//! In all of them `3` is the forward pass of micro-batch 3, `3'` its backward pass, `3i` and `3w` the
//! input and weight halves of that, `3r` a recompute, `0-1` a span, `3+1'` a pair and `.` idle time. A
//! worker with several stages of one pipe tells them apart by a letter: `a3`, `b3`. `u2` is the
//! optimizer's update of bucket 2. Sums of gradients, `g2`, stand on lines of their own below the
//! worker, since they run beside its row.

use std::fmt::Write;

use super::{goes_up, n_pipes, number, row_labels, rows, work_label};
use crate::analyze::{Event, Timeline, Work};
use crate::notation::Labels;
use crate::op::{Cell, Kind};

/// Drawings with more columns than this are scaled, since nobody reads them column by column.
const MAX_COLUMNS: usize = 2000;
/// Width of a scaled drawing, in characters.
const SCALED_WIDTH: usize = 100;

/// The timeline with one column per unit of time.
///
/// The unit is the greatest common divisor of all starts and ends. Work of several columns is filled
/// up with `-`. Where there is no such unit, as in measured times, it is drawn [`scaled`].
///
/// ```text
/// P0 0 1 . . 0'- . 1'-
/// P1 . 0 0'- 1 1'- . .
/// ```
pub fn timeline(timeline: &Timeline) -> String {
    match unit(timeline) {
        Some(unit) => columns(timeline, unit),
        None => scaled(timeline, SCALED_WIDTH),
    }
}

/// The timeline squeezed or stretched to `width` characters of equal time.
///
/// Work is filled up with `-` (forward) and `=` (backward) on a pipe that goes down, `~` and `≈` on one
/// that goes up, and named where there is room.
pub fn scaled(timeline: &Timeline, width: usize) -> String {
    let makespan = timeline.makespan();
    let unit = makespan / width as f64;
    let mut picture = Picture::new(timeline.n_workers);
    let n_pipes = n_pipes(timeline);
    for (worker, row) in rows(timeline).iter().enumerate() {
        let labels = row_labels(&row.compute);
        let line = |events: &[&Event]| {
            let mut line = String::new();
            let mut at = 0;
            for block in blocks(events, unit, width) {
                line.extend(std::iter::repeat_n('.', block.from - at));
                let label = work_label(&labels, block.event.work);
                let room = block.to - block.from;
                let shown = if label.len() < room { label.as_str() } else { "" };
                line.push_str(shown);
                line.extend(std::iter::repeat_n(
                    fill(block.event.work, n_pipes),
                    room - shown.len(),
                ));
                at = block.to;
            }
            line.extend(std::iter::repeat_n('.', width - at));
            line
        };
        picture.line(worker, &line(&row.compute));
        for lane in &row.reductions {
            let lane = line(lane).replace('.', " ");
            // Reductions too short for a column leave no line.
            if !lane.trim().is_empty() {
                picture.below(lane.trim_end());
            }
        }
    }
    let legend = match n_pipes {
        0 | 1 => "- forward, = backward",
        _ => "- forward, = backward; upwards ~ forward, ≈ backward",
    };
    let _ = writeln!(
        picture.text,
        "{legend}; + reduction, * update, . idle; {} in all",
        number(makespan)
    );
    picture.text
}

/// Lines that begin with the worker's name, all as far in.
struct Picture {
    text: String,
    margin: usize,
}

impl Picture {
    fn new(n_workers: usize) -> Picture {
        let last = n_workers.saturating_sub(1);
        Picture { text: String::new(), margin: format!("P{last} ").len() }
    }

    fn line(&mut self, worker: usize, line: &str) {
        let _ = writeln!(self.text, "{:margin$}{line}", format!("P{worker}"), margin = self.margin);
    }

    fn below(&mut self, line: &str) {
        let _ = writeln!(self.text, "{:margin$}{line}", "", margin = self.margin);
    }
}

fn columns(timeline: &Timeline, unit: f64) -> String {
    let rows = rows(timeline);
    let labels: Vec<Labels> = rows.iter().map(|row| row_labels(&row.compute)).collect();
    let n_columns = (timeline.makespan() / unit).round() as usize;
    // A label of work that lasts k columns may be as wide as they and the gaps between them.
    let width = rows
        .iter()
        .zip(&labels)
        .flat_map(|(row, labels)| {
            let events = row.compute.iter().chain(row.reductions.iter().flatten());
            events.map(move |e| (work_label(labels, e.work).len(), (e.end - e.start) / unit))
        })
        .map(|(len, lasts)| (len + 1).div_ceil(lasts.round().max(1.0) as usize) - 1)
        .fold(1, usize::max);

    let mut picture = Picture::new(timeline.n_workers);
    for (worker, (row, labels)) in rows.iter().zip(&labels).enumerate() {
        let line = |events: &[&Event], idle: &str| {
            let mut line = String::new();
            let mut at = 0;
            for block in blocks(events, unit, n_columns) {
                line.push_str(&format!("{idle:width$} ").repeat(block.from - at));
                let n_columns = block.to - block.from;
                let len = (width + 1) * n_columns - 1;
                let label = work_label(labels, block.event.work);
                let _ = match n_columns {
                    1 => write!(line, "{label:len$} "),
                    _ => write!(line, "{label:-<len$} "),
                };
                at = block.to;
            }
            line.push_str(&format!("{idle:width$} ").repeat(n_columns - at));
            line.truncate(line.trim_end().len());
            line
        };
        picture.line(worker, &line(&row.compute, "."));
        for lane in &row.reductions {
            picture.below(&line(lane, ""));
        }
    }
    picture.text
}

/// The greatest unit of which all starts and ends are multiples, if it makes a drawing of at most
/// [`MAX_COLUMNS`].
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
    (unit >= least && unit > 0.0 && times().all(whole)).then_some(unit)
}

/// An event in columns, `from..to`.
struct Block<'a> {
    event: &'a Event,
    from: usize,
    to: usize,
}

/// The columns of `events`, in order, without overlap and none beyond `n_columns`; those that round to
/// nothing are left out.
fn blocks<'a>(events: &[&'a Event], unit: f64, n_columns: usize) -> Vec<Block<'a>> {
    let column = |time: f64| ((time / unit).round() as usize).min(n_columns);
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

fn fill(work: Work, n_pipes: usize) -> char {
    let last = match work {
        Work::Cell(Cell::One(op) | Cell::Pair(_, op)) => op,
        Work::Reduce(_) => return '+',
        Work::Step(_) => return '*',
    };
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
    use crate::ids::{BucketId, PipeId, StageId, WorkerId};
    use crate::op::{Op, Span};

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
                       g0-------
                            g1-------
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
- forward, = backward; + reduction, * update, . idle; 0.09 in all
"
        );
        assert_eq!(timeline(&measured), scaled(&measured, SCALED_WIDTH));
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
