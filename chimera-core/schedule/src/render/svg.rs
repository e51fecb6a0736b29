//! Drawings as self-contained SVG, readable on light and on dark pages.
//!
//! One row per worker and one block per op, as wide as it lasts, with its micro-batch. The hue says
//! which pipe, the tone which kind: pale is forward, dark is backward. Moves of saved activations and sums of gradients run on thin
//! lanes below the row.

mod compare;

pub use compare::{Compared, compare};

use std::collections::BTreeSet;
use std::fmt::Write;

use super::legend::Legend;
use super::palette::{Paint, style};
use super::xml::{Area, Escaped, rect, text, vertical};
use super::{
    UNDRAWN_MOVES, WorkerRow, has_undrawn_moves, n_pipes, number, row_labels, rows, work_label,
};
use crate::analyze::{Event, Timeline, Work};
use crate::ir::op::Cell;
use crate::program::Program;

/// The least width, and times of it the greatest.
const WIDTH: f64 = 960.0;
const WIDEST: f64 = 4.0;
/// Width of a block whose label is two characters.
const LABEL: f64 = 18.0;
const MARGIN: f64 = 20.0;
/// Where time 0 is.
const LEFT: f64 = 56.0;
/// The title of a panel and the line below it.
const HEAD: f64 = 60.0;
/// Rows get lower where many workers would take more than this together.
const ROWS: f64 = 640.0;
/// Events that together are narrower than this are drawn as one.
const LEAST: f64 = 1.5;
/// Width of a character at font size 1, on average.
const CHAR: f64 = 0.56;
/// Width of a digit at font size 1, in the wide ones of the fonts that a viewer may choose.
const DIGIT: f64 = 0.6;
/// Smaller labels cannot be read.
const LEAST_LABEL: f64 = 7.0;

/// One timeline under `title`, with makespan and bubble ratio, a time axis and a legend.
pub fn timeline(timeline: &Timeline, title: &str) -> String {
    stack(&[(title, timeline)])
}

/// Several titled timelines, one below the other, on one scale of time.
///
/// The size of the drawing is bounded by the number of workers, not by that of events: those too narrow
/// to be seen are drawn together with their neighbours.
pub fn stack(panels: &[(&str, &Timeline)]) -> String {
    drawing(panels, Vec::new())
}

/// The [`timeline`] of a step of `program`, whose works beside the training the legend names.
pub fn step(program: &Program, timeline: &Timeline, title: &str) -> String {
    let works = program.rules().works().iter().map(|work| work.name.clone());
    drawing(&[(title, timeline)], works.collect())
}

fn drawing(panels: &[(&str, &Timeline)], works: Vec<String>) -> String {
    let longest = panels.iter().map(|(_, timeline)| timeline.makespan()).fold(0.0, f64::max);
    let width = width(panels, longest);
    let mut sheet = Sheet::new(width, (LEFT, width - MARGIN), longest);
    sheet.works = works;
    for (title, timeline) in panels {
        sheet.panel(title, timeline);
    }
    sheet.legend(LEFT);
    let titles: Vec<&str> = panels.iter().map(|(title, _)| *title).collect();
    let about = panels.iter().map(|(title, t)| format!("{title}: {}.", summary(t)));
    sheet.finish(&titles.join("; "), &about.collect::<Vec<_>>().join(" "))
}

/// So much that three of four cells have room for a label, if that is not too much.
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

/// What has been drawn so far, and down to where.
struct Sheet {
    blocks: String,
    /// What lies below the blocks.
    grid: String,
    y: f64,
    width: f64,
    /// Where time 0 is, and where `longest` is.
    span: (f64, f64),
    /// What there is room for.
    longest: f64,
    /// Pixels per unit of time.
    scale: f64,
    used: BTreeSet<Paint>,
    /// Names of works beside the training, if they are known.
    works: Vec<String>,
}

impl Sheet {
    fn new(width: f64, span: (f64, f64), longest: f64) -> Sheet {
        let measurable = longest > 0.0 && longest.is_finite();
        Sheet {
            blocks: String::new(),
            grid: String::new(),
            y: 0.0,
            width,
            span,
            longest,
            scale: if measurable { (span.1 - span.0) / longest } else { 0.0 },
            used: BTreeSet::new(),
            works: Vec::new(),
        }
    }

    fn panel(&mut self, title: &str, timeline: &Timeline) {
        let (title_at, summary_at) = ((MARGIN, self.y + 30.0), (MARGIN, self.y + 48.0));
        text(&mut self.blocks, title_at, "title ink", title);
        text(&mut self.blocks, summary_at, "soft", &summary(timeline));
        self.y += HEAD;

        let height = (ROWS / timeline.n_workers.max(1) as f64).clamp(3.0, 28.0);
        let gap = if height > 10.0 { 4.0 } else { 1.0 };
        let top = self.y - 4.0;
        self.rows(timeline, height, gap, true);
        let end = self.pixel(timeline.makespan());
        vertical(&mut self.blocks, end, top, self.y, "last");
        self.axis(top);
    }

    /// All workers, from here down; `named` if their names stand beside them.
    fn rows(&mut self, timeline: &Timeline, height: f64, gap: f64, named: bool) {
        let (rows, n_pipes) = (rows(timeline), n_pipes(timeline));
        let n_lanes =
            rows.iter().map(|row| row.reductions.len() + usize::from(!row.moves.is_empty())).max();
        let n_lanes = n_lanes.unwrap_or(0) as f64;
        let lane = (height / n_lanes.max(4.0)).max(2.0);

        let (left, end) = (self.span.0, self.pixel(timeline.makespan()));
        for (worker, row) in rows.iter().enumerate() {
            let idle = Area::new((left, self.y), (end - left, height));
            rect(&mut self.grid, idle, &Paint::Idle.to_string());
            if named && (height > 10.0 || worker % 8 == 0) {
                let at = (left - 10.0, self.y + height / 2.0 + 4.0);
                text(&mut self.blocks, at, "soft end", &format!("P{worker}"));
            }
            self.row(row, n_pipes, height, lane);
            self.y += height + lane * n_lanes + gap;
        }
    }

    fn row(&mut self, row: &WorkerRow, n_pipes: usize, height: f64, lane: f64) {
        let labels = row_labels(&row.compute);
        for run in self.runs(&row.compute) {
            let (event, area) = (run.first, run.area(self.y, height));
            match event.work {
                Work::Cell(Cell::One(op)) => {
                    self.block(area, Paint::of(op, n_pipes), event, &labels.micro_batches(op));
                }
                Work::Cell(Cell::Pair(a, b)) => {
                    for (op, half) in [a, b].into_iter().zip(area.halves()) {
                        self.block(half, Paint::of(op, n_pipes), event, &labels.micro_batches(op));
                    }
                }
                work => self.block(area, Paint::Step, event, &work_label(&labels, work)),
            }
        }
        let mut y = self.y + height + 1.0;
        if !row.moves.is_empty() {
            for run in self.runs(&row.moves) {
                if let Work::Move(op) = run.first.work {
                    self.block(run.area(y, lane - 1.0), Paint::of(op, n_pipes), run.first, "");
                }
            }
            y += lane;
        }
        for reductions in &row.reductions {
            for run in self.runs(reductions) {
                self.block(run.area(y, lane - 1.0), Paint::Sum, run.first, "");
            }
            y += lane;
        }
    }

    /// `events` in pixels, those together that are too narrow to be seen apart.
    fn runs<'a>(&self, events: &[&'a Event]) -> Vec<Merged<'a>> {
        let mut runs: Vec<Merged> = Vec::new();
        for &event in events {
            let (from, to) = (self.pixel(event.start), self.pixel(event.end));
            match runs.last_mut() {
                Some(run) if to - run.from < LEAST => run.to = run.to.max(to),
                _ => runs.push(Merged { first: event, from, to }),
            }
        }
        runs
    }

    fn pixel(&self, time: f64) -> f64 {
        let ((left, right), x) = (self.span, time * self.scale);
        if x > 0.0 { (left + x).min(right) } else { left }
    }

    /// A block; where there is room, with a label, as large as fits, and a tip that shows when pointed at.
    fn block(&mut self, area: Area, paint: Paint, event: &Event, label: &str) {
        self.used.insert(paint);
        if area.width < 5.0 || area.height < 3.0 {
            return rect(&mut self.blocks, area, &format!("{paint} thin"));
        }
        let area = Area { width: area.width - 1.0, ..area };
        let radius = (area.height / 8.0).min(2.5);
        let tip = tip(event);
        let _ = writeln!(
            self.blocks,
            r#"<rect {area} rx="{radius:.2}" class="{paint}"><title>{tip}</title></rect>"#
        );
        let fitting = (area.width - 2.0) / (label.len() as f64 * DIGIT);
        let size = (area.height * 0.6).min(13.0).min(fitting);
        if size > LEAST_LABEL && !label.is_empty() {
            let x = area.x + area.width / 2.0;
            let y = area.y + area.height / 2.0 + size * 0.36;
            let ink = paint.ink();
            let _ = writeln!(
                self.blocks,
                r#"<text x="{x:.2}" y="{y:.2}" font-size="{size:.2}" class="mid {ink}">{label}</text>"#,
            );
        }
    }

    /// Ticks and times below the rows that began at `top`.
    fn axis(&mut self, top: f64) {
        let (step, n_ticks) = match self.scale > 0.0 {
            true => {
                let step = tick(56.0 / self.scale);
                (step, (self.longest / step + 1e-6).floor() as u32)
            }
            false => (0.0, 0),
        };
        for i in 0..=n_ticks {
            let time = f64::from(i) * step;
            let x = self.pixel(time);
            vertical(&mut self.grid, x, top, self.y + 2.0, "grid");
            text(&mut self.grid, (x, self.y + 15.0), "soft mid", &number(time));
        }
        self.y += 22.0;
    }

    fn legend(&mut self, left: f64) {
        self.used.insert(Paint::Idle);
        let legend = Legend::new(&mut self.blocks, (left, self.y + 8.0), self.width);
        self.y = legend.draw(&self.used, &self.works) + 10.0;
    }

    fn finish(self, title: &str, about: &str) -> String {
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img" aria-label="{title}" class="chimera">
<title>{title}</title>
<desc>{about}</desc>
<style>{style}</style>
<defs><pattern id="chimera-idle" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" class="ground"/><line x1="0" y1="0" x2="0" y2="6" stroke-width="2" class="hatch"/></pattern></defs>
<rect width="{width:.0}" height="{height:.0}" rx="8" class="page"/>
{grid}{blocks}</svg>
"##,
            width = self.width,
            height = self.y.ceil(),
            title = Escaped(title),
            about = Escaped(about),
            style = style(self.used.iter().copied()),
            grid = self.grid,
            blocks = self.blocks,
        )
    }
}

/// Events drawn as one block, from pixel to pixel.
struct Merged<'a> {
    first: &'a Event,
    from: f64,
    to: f64,
}

impl Merged<'_> {
    fn area(&self, y: f64, height: f64) -> Area {
        Area::new((self.from, y), (self.to - self.from, height))
    }
}

fn summary(timeline: &Timeline) -> String {
    let s = if timeline.n_workers == 1 { "" } else { "s" };
    let moves = match has_undrawn_moves(timeline) {
        true => format!(" · {UNDRAWN_MOVES}"),
        false => String::new(),
    };
    format!(
        "{} worker{s} · makespan {} · bubble ratio {:.1} %{moves}",
        timeline.n_workers,
        number(timeline.makespan()),
        timeline.bubble_ratio() * 100.0
    )
}

fn tip(event: &Event) -> String {
    let (start, end) = (number(event.start), number(event.end));
    match event.work {
        Work::Cell(cell) => format!("{cell}: {start} to {end}"),
        Work::Reduce(bucket) => format!("gradient reduction of {bucket}: {start} to {end}"),
        Work::Step(bucket) => format!("update of {bucket}: {start} to {end}"),
        Work::Move(op) => format!("{op}: {start} to {end}"),
    }
}

/// The least of 1, 2 and 5 times a power of ten that is at least `least`.
fn tick(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|by| by * power);
    steps.into_iter().find(|&step| step >= least).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ids::{BucketId, PipeId, StageId, WorkId, WorkerId};
    use crate::ir::op::{Kind, Op};

    fn busy(n_workers: u16, n_events: u32, lasts: f64) -> Timeline {
        let events = (0..n_workers).flat_map(|worker| {
            (0..n_events).map(move |nth| Event {
                worker: WorkerId(worker),
                work: Work::Cell(Op::new(Kind::Forward, PipeId(0), StageId(worker), nth).into()),
                start: f64::from(nth) * lasts,
                end: f64::from(nth + 1) * lasts,
                after: None,
            })
        });
        Timeline { n_workers: usize::from(n_workers), events: events.collect() }
    }

    #[test]
    fn every_block_has_its_place_and_label() {
        let drawing = timeline(&busy(2, 4, 0.5), "two");
        let block = r#"<rect x="277.00" y="92.00" width="220.00" height="28.00" rx="2.50" class="d0F"><title>F(pipe 0, stage 1, micro-batch 1): 0.5 to 1</title></rect>"#;
        assert!(drawing.contains(block), "{drawing}");
        assert!(drawing.contains("2 workers · makespan 2 · bubble ratio 0.0 %"));
        assert_eq!(drawing.matches(r#"class="mid dark""#).count(), 8);
    }

    /// Font sizes of the labels in a drawing.
    fn label_sizes(drawing: &str) -> Vec<f64> {
        let labels = drawing.lines().filter_map(|line| line.split_once("font-size=\""));
        let sizes = labels.filter_map(|(_, rest)| rest.split_once('"')?.0.parse().ok());
        sizes.collect()
    }

    #[test]
    fn a_label_is_as_large_as_its_block_has_room_for() {
        let sizes = label_sizes(&timeline(&busy(1, 240, 1.0), "two and three digits"));
        assert_eq!(sizes.len(), 240, "none is left out");
        assert!(sizes[0] > 12.0 && sizes[50] < sizes[0] && sizes[200] < sizes[50], "{sizes:?}");
        for (nth, size) in sizes.iter().enumerate() {
            let width = (WIDEST * WIDTH - LEFT - MARGIN) / 240.0 - 1.0;
            assert!(nth.to_string().len() as f64 * DIGIT * size <= width, "{nth}: {size}");
        }
        assert!(label_sizes(&timeline(&busy(1, 700, 1.0), "too many")).len() < 700);
    }

    #[test]
    fn the_legend_names_works_beside_the_training() {
        let mut works = busy(1, 1, 1.0);
        for nth in 0..2 {
            let op = Op::new(Kind::Work(WorkId(nth)), PipeId(0), StageId(0), 0);
            let start = 1.0 + f64::from(nth);
            works.events.push(Event {
                worker: WorkerId(0),
                work: Work::Cell(op.into()),
                start,
                end: start + 1.0,
                after: None,
            });
        }
        let unnamed = timeline(&works, "works");
        assert_eq!(unnamed.matches(">work beside the training<").count(), 1, "{unnamed}");
        let named = drawing(&[("works", &works)], vec!["a<b".into(), "inverses".into()]);
        for name in [">work: a&lt;b<", ">work: inverses<"] {
            assert!(named.contains(name), "{name}: {named}");
        }
        assert!(!named.contains("work beside the training<"), "{named}");
    }

    #[test]
    fn panels_share_the_scale_of_time() {
        let (long, short) = (busy(1, 4, 1.0), busy(1, 2, 1.0));
        let drawing = stack(&[("long", &long), ("short", &short)]);
        assert_eq!(drawing.matches(r#"width="220.00""#).count(), 6);
        assert!(drawing.contains("<title>long; short</title>"));
    }

    #[test]
    fn titles_are_escaped() {
        let drawing = timeline(&busy(1, 1, 1.0), "</title><script>\"&\u{1b}");
        assert!(drawing.contains("<title>&lt;/title&gt;&lt;script&gt;&quot;&amp;</title>"));
        assert!(!drawing.contains("<script>"));
    }

    #[test]
    fn size_does_not_grow_with_the_number_of_events() {
        let few = timeline(&busy(4, 2_000, 1.0), "few").len();
        let many = timeline(&busy(4, 200_000, 1.0), "many").len();
        assert!(many < 2 * few, "{few} bytes, {many} bytes");
    }

    #[test]
    fn reductions_that_overlap_lie_in_lanes() {
        let mut both = busy(1, 4, 1.0);
        for bucket in 0..2 {
            both.events.push(Event {
                worker: WorkerId(0),
                work: Work::Reduce(BucketId(bucket)),
                start: f64::from(bucket),
                end: 3.0,
                after: None,
            });
        }
        let drawing = timeline(&both, "sums");
        for y in ["89.00", "96.00"] {
            assert!(drawing.contains(&format!(r#"y="{y}""#)), "{drawing}");
        }
    }

    #[test]
    fn senseless_times_leave_no_nan() {
        for (start, end) in [(0.0, f64::INFINITY), (f64::NAN, 1.0), (-5.0, -1.0), (3.0, 1.0)] {
            let mut timeline = busy(1, 3, 1.0);
            (timeline.events[1].start, timeline.events[1].end) = (start, end);
            let drawing = super::timeline(&timeline, "senseless");
            assert!(!drawing.contains("\"NaN") && !drawing.contains("\"inf"), "{drawing}");
        }
        assert!(timeline(&Timeline::default(), "empty").ends_with("</svg>\n"));
    }
}
