//! The legend of a drawing's colours.

use std::collections::BTreeSet;

use super::palette::{Paint, Way};
use super::xml::{Area, rect, text};
use crate::ir::op::Kind;

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

    /// Draws an entry for each kind, each of `works` with its name, each pipe if there are several,
    /// and everything else that was `used`. Returns the end of the last line.
    pub(super) fn draw(mut self, used: &BTreeSet<Paint>, works: &[String]) -> f64 {
        for kind in Kind::ALL {
            let of_kind = |paint: &&Paint| matches!(paint, Paint::Op(_, k) if *k == kind);
            self.entry(used.iter().filter(of_kind), &kind_name(kind));
        }
        let name_of = |paint: &Paint| match paint {
            Paint::Beside(work) => Some(works.get(work.index())),
            _ => None,
        };
        for paint in used {
            if let Some(Some(name)) = name_of(paint) {
                self.entry([paint].into_iter(), &format!("work: {name}"));
            }
        }
        let unnamed = used.iter().filter(|paint| matches!(name_of(paint), Some(None)));
        self.entry(unnamed, "work beside the training");
        for (paint, name) in
            [(Paint::Step, "optimizer"), (Paint::Sum, "gradient reduction"), (Paint::Idle, "idle")]
        {
            self.entry(used.get(&paint).into_iter(), name);
        }
        let ways = used.iter().filter_map(|paint| match paint {
            Paint::Op(way, _) => Some(*way),
            _ => None,
        });
        let ways: BTreeSet<Way> = ways.collect();
        if ways.len() > 1 {
            for way in &ways {
                let goes_it = |paint: &&Paint| matches!(paint, Paint::Op(w, _) if w == way);
                self.entry(used.iter().filter(goes_it), &way_name(*way, &ways));
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
        let width = swatches + 6.0 + name.chars().count() as f64 * CHAR + 18.0;
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

fn kind_name(kind: Kind) -> String {
    match kind {
        Kind::BackwardInput | Kind::BackwardWeight => format!("backward, {}", kind.name()),
        kind => kind.name().into(),
    }
}

/// The name of a direction: `down` and `up` if only one pipe goes that way, `down 0` … if several
/// do, `pipe 0` … if none goes up.
fn way_name(way: Way, ways: &BTreeSet<Way>) -> String {
    let n_up = ways.iter().filter(|way| matches!(way, Way::Up(_))).count();
    let is_pair = n_up == 1 && ways.len() == 2;
    match way {
        Way::Down(_) if is_pair => "down".to_string(),
        Way::Up(_) if is_pair => "up".to_string(),
        Way::Down(nth) if n_up == 0 => format!("pipe {nth}"),
        Way::Down(nth) => format!("down {nth}"),
        Way::Up(nth) => format!("up {nth}"),
    }
}
