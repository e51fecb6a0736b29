//! Rows for the links that flows have shared: as high as the fraction of the bandwidth that is
//! used, with the number of flows.

use std::fmt::Write;

use super::sheet::Sheet;
use crate::analyze::links::{LinkLoad, Loaded};
use crate::render::number;
use crate::render::palette::Paint;
use crate::render::xml::{Area, rect, text};

/// Height of a row, and of the name above it.
const ROW: f64 = 16.0;
const NAME: f64 = 13.0;
/// Times that are narrower than this are drawn as one.
const LEAST: f64 = 1.5;
/// A count of flows needs this width.
const COUNT: f64 = 12.0;

impl Sheet {
    /// Draws a row for each link that flows have shared.
    pub(super) fn links(&mut self, loads: &[LinkLoad], makespan: f64) {
        for load in loads.iter().filter(|load| load.is_contended) {
            let at = (self.span.0, self.y + NAME - 3.0);
            text(&mut self.blocks, at, "soft", &load.name);
            self.y += NAME;
            let idle = Area::new((self.span.0, self.y), (self.pixel(makespan) - self.span.0, ROW));
            rect(&mut self.grid, idle, &Paint::Idle.to_string());
            for time in self.merged(&load.loaded) {
                self.used(time);
            }
            self.y += ROW + 4.0;
        }
    }

    /// Joins times that are too narrow to be distinguished.
    fn merged(&self, loaded: &[Loaded]) -> Vec<Loaded> {
        let mut times: Vec<Loaded> = Vec::new();
        for next in loaded {
            match times.last_mut() {
                Some(last) if (next.to - last.from) * self.scale < LEAST => {
                    last.to = next.to;
                    last.used = last.used.max(next.used);
                    last.n_flows = last.n_flows.max(next.n_flows);
                }
                _ => times.push(*next),
            }
        }
        times
    }

    fn used(&mut self, time: Loaded) {
        let Loaded { from, to, n_flows, used } = time;
        let (left, right) = (self.pixel(from), self.pixel(to));
        let height = ROW * used.clamp(0.05, 1.0);
        let area = Area::new((left, self.y + ROW - height), (right - left, height));
        let paint = Paint::Sum;
        self.used.insert(paint);
        let (start, end) = (number(from), number(to));
        let part = number((used * 1000.0).round() / 10.0);
        let _ = writeln!(
            self.blocks,
            r#"<rect {area} class="{paint}"><title>{n_flows} flow(s), {part} % of the bandwidth: {start} to {end}</title></rect>"#
        );
        if area.width > COUNT && height > 9.0 {
            let (x, y) = (left + area.width / 2.0, self.y + ROW - 4.0);
            let ink = paint.ink();
            let _ = writeln!(
                self.blocks,
                r#"<text x="{x:.2}" y="{y:.2}" font-size="9" class="mid {ink}">{n_flows}</text>"#
            );
        }
    }
}
