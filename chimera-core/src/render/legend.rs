//! What the colours of a drawing mean.

use std::collections::BTreeSet;

use super::goes_up;
use super::palette::Paint;
use super::xml::{Area, rect, text};
use crate::ids::PipeId;
use crate::op::Kind;

const SWATCH: f64 = 14.0;
const LINE: f64 = 22.0;
/// Width of a character, on average.
const CHAR: f64 = 6.7;

/// Entries side by side, in lines that begin and end at the same places.
pub(super) struct Legend<'a> {
    into: &'a mut String,
    left: f64,
    right: f64,
    x: f64,
    y: f64,
}

impl<'a> Legend<'a> {
    pub(super) fn new(into: &'a mut String, (left, y): (f64, f64), right: f64) -> Legend<'a> {
        Legend { into, left, right, x: left, y }
    }

    /// An entry for each kind, each pipe if there are several, and whatever else was `used`. Returns
    /// where the last line ends.
    pub(super) fn draw(mut self, used: &BTreeSet<Paint>, n_pipes: usize) -> f64 {
        for kind in Kind::ALL {
            let of_kind = |paint: &&Paint| matches!(paint, Paint::Op(_, k) if *k == kind);
            self.entry(used.iter().filter(of_kind), kind_name(kind));
        }
        for (paint, name) in
            [(Paint::Step, "optimizer"), (Paint::Sum, "sum of gradients"), (Paint::Idle, "idle")]
        {
            self.entry(used.get(&paint).into_iter(), name);
        }
        if n_pipes > 1 {
            for pipe in (0..n_pipes).map(|pipe| PipeId(pipe as u16)) {
                let of_pipe = |paint: &&Paint| matches!(paint, Paint::Op(p, _) if *p == pipe);
                self.entry(used.iter().filter(of_pipe), &pipe_name(pipe, n_pipes));
            }
        }
        self.y + LINE
    }

    /// Swatches of `paints` before `name`, on the next line if this one is full.
    fn entry<'p>(&mut self, paints: impl Iterator<Item = &'p Paint>, name: &str) {
        let paints: Vec<_> = paints.collect();
        if paints.is_empty() {
            return;
        }
        let swatches = SWATCH * paints.len() as f64;
        let width = swatches + 6.0 + name.len() as f64 * CHAR + 18.0;
        if self.x > self.left && self.x + width > self.right {
            self.x = self.left;
            self.y += LINE;
        }
        let end = self.x + width;
        for paint in paints {
            let area = Area::new((self.x, self.y), (SWATCH, 12.0));
            rect(self.into, area, &paint.to_string());
            self.x += SWATCH;
        }
        text(self.into, (self.x + 6.0, self.y + 10.0), "soft", name);
        self.x = end;
    }
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Forward => "forward",
        Kind::Backward => "backward",
        Kind::BackwardInput => "backward, input half",
        Kind::BackwardWeight => "backward, weight half",
        Kind::Recompute => "recompute",
    }
}

/// `down` and `up` where there are two pipes, `down 0` … where there are more.
fn pipe_name(pipe: PipeId, n_pipes: usize) -> String {
    match (n_pipes, goes_up(pipe, n_pipes)) {
        (2, false) => "down".to_string(),
        (2, true) => "up".to_string(),
        (_, true) => format!("up {}", pipe.index() - n_pipes / 2),
        (n, false) if n.is_multiple_of(2) => format!("down {}", pipe.0),
        _ => format!("pipe {}", pipe.0),
    }
}
