//! Drawings in plain text, one line per worker.
//!
//! In all of them `3` is the forward pass of micro-batch 3, `3'` its backward pass, `3i` and `3w`
//! the input and weight halves of that, `3r` a recompute, `0-1` a span, `3+1'` a pair and `.` idle
//! time. Letters distinguish several stages of one pipe on a worker: `a3`, `b3`. `u2` is the
//! optimizer's update of bucket 2. Gradient reductions, `g2`, run in parallel to a worker's row.
//! They share a line below it, which begins with `+` and is filled with `+` while any of them runs.
//! Moves of saved activations share a line that begins with `>`: `3o` offloads those of micro-batch
//! 3, `3l` reloads them, `3t` returns them to their worker. `3x` is a piece of a caller's own work,
//! `3y` one of a second such work; [`work_marks`] lists them.

mod look;
mod scale;

use std::fmt::Write;

use self::look::{fill, marks_beside};
use self::scale::Scale;
use super::screen::{Line, Picture, Screen};
use super::{UNDRAWN_MOVES, has_undrawn_moves, n_pipes, number, row_labels, rows, work_label};
use crate::analyze::{Timeline, Work};
use crate::ir::ids::WorkId;
use crate::ir::notation::{Labels, work_mark};

/// Drawings with more columns than this are scaled, since nobody reads them column by column.
const MAX_COLUMNS: usize = 2000;
/// Drawings in which an op needs more columns than this are scaled: lines would be many screens of
/// filling.
const MAX_OP_COLUMNS: f64 = 8.0;
/// Width of a scaled drawing, in characters.
const SCALED_WIDTH: usize = 100;

/// The timeline with one column per unit of time.
///
/// The unit is the greatest common divisor of all starts and ends. Work of several columns is filled
/// up with `-`. The timeline is drawn [`scaled`] if there is no such unit, as in measured times, or if
/// an op lasts many of them, as where ops take 0.37 and 0.77.
///
/// ```text
/// P0 0 1 . . 0'- . 1'-
/// P1 . 0 0'- 1 1'- . .
/// ```
pub fn timeline(timeline: &Timeline) -> String {
    timeline_on(timeline, Screen::PLAIN)
}

/// The [`timeline`] on a screen: a wider drawing is cut into bands of columns, one below the other.
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
/// Work is filled up with `-` (forward) and `=` (backward) on a pipe that goes down, `~` and `≈` on
/// one that goes up, and named if there is room.
pub fn scaled(timeline: &Timeline, width: usize) -> String {
    scaled_on(timeline, width, Screen::PLAIN)
}

/// The [`scaled`] timeline on a screen, as wide as the screen, or otherwise `width` characters
/// wide.
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
    let moves =
        if has_undrawn_moves(timeline) { format!("; {UNDRAWN_MOVES}") } else { String::new() };
    let _ = writeln!(
        picture.text,
        "{legend}{beside}; + reduction, * update, . idle{moves}; total time {}",
        number(makespan)
    );
    picture.text
}

/// The marks of works with these names in a drawing, such as `x factors, y inverses`.
pub fn work_marks<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mark = |(nth, name): (u8, &str)| format!("{} {name}", work_mark(WorkId(nth)));
    (0..=u8::MAX).zip(names).map(mark).collect::<Vec<_>>().join(", ")
}

fn columns(timeline: &Timeline, unit: f64, screen: Screen<'_>) -> String {
    let rows = rows(timeline);
    let labels: Vec<Labels> = rows.iter().map(|row| row_labels(&row.compute)).collect();
    let n_columns = (timeline.makespan() / unit).round() as usize;
    // A label of work that lasts k columns may be as wide as these and the gaps between them.
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
    // The last column needs no gap after it.
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

/// The greatest unit that divides all starts and ends, if the drawing then has at most
/// [`MAX_COLUMNS`] and no op has more than [`MAX_OP_COLUMNS`].
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

#[cfg(test)]
mod tests;
