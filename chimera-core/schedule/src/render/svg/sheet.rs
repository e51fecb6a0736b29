//! The sheet of a drawing, which grows from top to bottom.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::{MARGIN, summary};
use crate::analyze::{Event, Timeline, Work};
use crate::ir::op::Cell;
use crate::render::legend::Legend;
use crate::render::palette::{Paint, style};
use crate::render::xml::{Area, Escaped, rect, text, vertical};
use crate::render::{WorkerRow, n_pipes, number, row_labels, rows, work_label};

/// The title of a panel and the line below it.
const HEAD: f64 = 60.0;
/// Rows get lower if many workers would take more than this together.
const ROWS: f64 = 640.0;
/// Events that are narrower than this together are drawn as one.
const LEAST: f64 = 1.5;
/// Width of a digit at font size 1, in the widest fonts that a viewer may use.
pub(super) const DIGIT: f64 = 0.6;
/// Smaller labels cannot be read.
const LEAST_LABEL: f64 = 7.0;

/// The drawing so far, and its height.
pub(super) struct Sheet {
    pub(super) blocks: String,
    /// Lines below the blocks.
    pub(super) grid: String,
    pub(super) y: f64,
    pub(super) width: f64,
    /// Positions of time 0 and of `longest`.
    pub(super) span: (f64, f64),
    /// The longest time to draw.
    pub(super) longest: f64,
    /// Pixels per unit of time.
    pub(super) scale: f64,
    pub(super) used: BTreeSet<Paint>,
    /// Names of a caller's own works, if they are known.
    pub(super) works: Vec<String>,
}

impl Sheet {
    pub(super) fn new(width: f64, span: (f64, f64), longest: f64) -> Sheet {
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

    pub(super) fn panel(&mut self, title: &str, timeline: &Timeline) {
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

    /// Draws all workers below, with their names at the left if `named`.
    pub(super) fn rows(&mut self, timeline: &Timeline, height: f64, gap: f64, named: bool) {
        let rows = rows(timeline);
        let n_pipes = n_pipes(timeline);
        let n_lanes =
            rows.iter().map(|row| row.reductions.len() + usize::from(!row.moves.is_empty())).max();
        let n_lanes = n_lanes.unwrap_or(0) as f64;
        let lane = (height / n_lanes.max(4.0)).max(2.0);

        let left = self.span.0;
        let end = self.pixel(timeline.makespan());
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
            let event = run.first;
            let area = run.area(self.y, height);
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

    /// `events` in pixels; events too narrow to be distinguished are combined.
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

    pub(super) fn pixel(&self, time: f64) -> f64 {
        let ((left, right), x) = (self.span, time * self.scale);
        if x > 0.0 { (left + x).min(right) } else { left }
    }

    /// Draws a block, with the largest label that fits, and a tip that shows when pointed at.
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
    pub(super) fn axis(&mut self, top: f64) {
        let (step, n_ticks) = if self.scale > 0.0 {
            let step = tick(56.0 / self.scale);
            (step, (self.longest / step + 1e-6).floor() as u32)
        } else {
            (0.0, 0)
        };
        for i in 0..=n_ticks {
            let time = f64::from(i) * step;
            let x = self.pixel(time);
            vertical(&mut self.grid, x, top, self.y + 2.0, "grid");
            text(&mut self.grid, (x, self.y + 15.0), "soft mid", &number(time));
        }
        self.y += 22.0;
    }

    pub(super) fn legend(&mut self, left: f64) {
        self.used.insert(Paint::Idle);
        let legend = Legend::new(&mut self.blocks, (left, self.y + 8.0), self.width);
        self.y = legend.draw(&self.used, &self.works) + 10.0;
    }

    pub(super) fn finish(self, title: &str, about: &str) -> String {
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

fn tip(event: &Event) -> String {
    let (start, end) = (number(event.start), number(event.end));
    match event.work {
        Work::Cell(cell) => format!("{cell}: {start} to {end}"),
        Work::Reduce(bucket) => format!("gradient reduction of {bucket}: {start} to {end}"),
        Work::Step(bucket) => format!("update of {bucket}: {start} to {end}"),
        Work::Move(op) => format!("{op}: {start} to {end}"),
    }
}

/// The smallest of 1, 2 and 5 times a power of ten that is at least `least`.
fn tick(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|by| by * power);
    steps.into_iter().find(|&step| step >= least).unwrap_or(10.0 * power)
}
