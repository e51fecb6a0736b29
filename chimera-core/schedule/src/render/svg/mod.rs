//! Drawings as self-contained SVG, readable on light and on dark pages.
//!
//! There is one row per worker and one block per op, as wide as it lasts, with its micro-batch. The
//! hue shows the pipe, the tone the kind: pale is forward, dark is backward. Moves of saved
//! activations and sums of gradients run on thin lanes below the row.

mod compare;
mod links;
mod sheet;

pub use compare::{Compared, compare};

use self::sheet::Sheet;
use super::{UNDRAWN_MOVES, has_undrawn_moves, number};
use crate::analyze::links::LinkLoad;
use crate::analyze::{Timeline, Work};
use crate::program::Program;

/// The least width. The greatest is [`WIDEST`] times as much.
const WIDTH: f64 = 960.0;
const WIDEST: f64 = 4.0;
/// Width of a block with a label of two characters.
const LABEL: f64 = 18.0;
const MARGIN: f64 = 20.0;
/// Position of time 0.
const LEFT: f64 = 56.0;
/// Width of a character at font size 1, on average.
const CHAR: f64 = 0.56;

/// One timeline under `title`, with makespan and bubble ratio, a time axis and a legend.
pub fn timeline(timeline: &Timeline, title: &str) -> String {
    stack(&[(title, timeline)])
}

/// Several titled timelines, one below the other, on one scale of time.
///
/// The size of the drawing is bounded by the number of workers, not of events: events too narrow to
/// be seen are drawn together with their neighbours.
pub fn stack(panels: &[(&str, &Timeline)]) -> String {
    drawing(panels, Vec::new(), &[])
}

/// The [`timeline`] of a step of `program`, with its works named in the legend.
pub fn step(program: &Program, timeline: &Timeline, title: &str) -> String {
    let works = program.rules().works().iter().map(|work| work.name.clone());
    drawing(&[(title, timeline)], works.collect(), &[])
}

/// The [`step`] on a topology, with a row for each link that flows have shared.
pub fn on_links(program: &Program, timeline: &Timeline, title: &str, loads: &[LinkLoad]) -> String {
    let works = program.rules().works().iter().map(|work| work.name.clone());
    drawing(&[(title, timeline)], works.collect(), loads)
}

fn drawing(panels: &[(&str, &Timeline)], works: Vec<String>, loads: &[LinkLoad]) -> String {
    let longest = panels.iter().map(|(_, timeline)| timeline.makespan()).fold(0.0, f64::max);
    let width = width(panels, longest);
    let mut sheet = Sheet::new(width, (LEFT, width - MARGIN), longest);
    sheet.works = works;
    for (title, timeline) in panels {
        sheet.panel(title, timeline);
        sheet.links(loads, timeline.makespan());
    }
    sheet.legend(LEFT);
    let titles: Vec<&str> = panels.iter().map(|(title, _)| *title).collect();
    let about = panels.iter().map(|(title, t)| format!("{title}: {}.", summary(t)));
    sheet.finish(&titles.join("; "), &about.collect::<Vec<_>>().join(" "))
}

/// The width at which three of four cells have room for a label, up to a limit.
fn width(panels: &[(&str, &Timeline)], longest: f64) -> f64 {
    let events = panels.iter().flat_map(|(_, timeline)| &timeline.events);
    let cells = events.filter(|event| matches!(event.work, Work::Cell(_)));
    let mut durations: Vec<f64> = cells.map(|cell| cell.end - cell.start).collect();
    let quarter = durations.len() / 4;
    if durations.is_empty() {
        return WIDTH;
    }
    let (_, short, _) = durations.select_nth_unstable_by(quarter, f64::total_cmp);
    let wanted = LEFT + MARGIN + longest * LABEL / *short;
    if wanted > WIDTH { wanted.min(WIDEST * WIDTH).round() } else { WIDTH }
}

fn summary(timeline: &Timeline) -> String {
    let s = if timeline.n_workers == 1 { "" } else { "s" };
    let moves =
        if has_undrawn_moves(timeline) { format!(" · {UNDRAWN_MOVES}") } else { String::new() };
    format!(
        "{} worker{s} · makespan {} · bubble ratio {:.1} %{moves}",
        timeline.n_workers,
        number(timeline.makespan()),
        timeline.bubble_ratio() * 100.0
    )
}

#[cfg(test)]
mod tests;
