//! Colours of drawings.

use std::fmt::{self, Display, Write};

use super::goes_up;
use crate::ir::ids::{PipeId, WorkId};
use crate::ir::op::{Kind, Lane, Op};

/// Pale, medium, strong and dark tones of the pipes that go down.
const DOWN: [[&str; 4]; 4] = [
    ["#c3dcf7", "#84b4e6", "#3f83c8", "#1f5c9e"],
    ["#b8e3db", "#6cc0b2", "#2b9686", "#0f6d61"],
    ["#dccff5", "#b49de4", "#8763c9", "#5f3ba0"],
    ["#cbe7bd", "#92c980", "#5a9c44", "#3a7224"],
];
/// Colours of the pipes that go up.
const UP: [[&str; 4]; 4] = [
    ["#ffdcb8", "#f7b173", "#e07c30", "#b5520f"],
    ["#fbcdd0", "#ee919b", "#d44f60", "#a32c42"],
    ["#f5e3a4", "#e0c052", "#b58f1c", "#866608"],
    ["#f5c9e6", "#e190c7", "#bd519b", "#8a2f71"],
];
/// Colours of a caller's own works.
const BESIDE: [&str; 4] = ["#f2e7a1", "#d8cfc0", "#c9d6a3", "#e3c9b8"];

/// Every rule begins with the drawing's own class, so that none affects the surrounding page.
const STYLE: &str = "
.chimera { font: 12px Inter, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; }
.chimera .page { fill: #ffffff; }
.chimera .ink { fill: #1c2733; }
.chimera .soft { fill: #5b6875; }
.chimera .title { font-size: 16px; font-weight: 600; }
.chimera .name { font-size: 14px; font-weight: 600; }
.chimera .mid { text-anchor: middle; }
.chimera .end { text-anchor: end; }
.chimera .pale { fill: #ffffff; }
.chimera .dark { fill: #1c2733; }
.chimera .ground { fill: #f1f3f6; }
.chimera .hatch { stroke: #d5dbe2; }
.chimera .idle { fill: url(#chimera-idle); }
.chimera .grid { stroke: #5b6875; stroke-opacity: .2; }
.chimera .last { stroke: #5b6875; stroke-dasharray: 3 3; }
.chimera .thin { shape-rendering: crispEdges; }
.chimera .sum { fill: #8a95a1; }
.chimera .step { fill: #4b5763; }
@media (prefers-color-scheme: dark) {
  .chimera .page { fill: #0f151c; }
  .chimera .ink { fill: #e8edf2; }
  .chimera .soft, .chimera .sum { fill: #9aa7b4; }
  .chimera .ground { fill: #19222c; }
  .chimera .hatch { stroke: #33404d; }
  .chimera .grid, .chimera .last { stroke: #9aa7b4; }
  .chimera .step { fill: #64717e; }
}
";

/// The direction of a pipe, and its number among the pipes of this direction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    Down(u16),
    Up(u16),
}

impl Way {
    fn of(pipe: PipeId, n_pipes: usize) -> Way {
        if goes_up(pipe, n_pipes) {
            Way::Up(pipe.0 - (n_pipes / 2) as u16)
        } else {
            Way::Down(pipe.0)
        }
    }

    fn tones(self) -> [&'static str; 4] {
        let (hues, nth) = match self {
            Way::Down(nth) => (DOWN, nth),
            Way::Up(nth) => (UP, nth),
        };
        hues[usize::from(nth) % hues.len()]
    }
}

/// Everything that gives a block its colour.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Paint {
    /// A pass of the n-th pipe in one direction.
    Op(Way, Kind),
    /// A caller's own work.
    Beside(WorkId),
    Step,
    Sum,
    Idle,
}

impl Paint {
    /// The paint of an op, given the number of pipes.
    pub(super) fn of(op: Op, n_pipes: usize) -> Paint {
        if let Kind::Work(work) = op.kind {
            return Paint::Beside(work);
        }
        Paint::Op(Way::of(op.pipe, n_pipes), op.kind)
    }

    /// The class of a label on this paint.
    pub(super) fn ink(self) -> &'static str {
        match self {
            Paint::Op(_, Kind::Forward | Kind::BackwardWeight | Kind::Recompute) => "dark",
            Paint::Op(_, kind) if kind.lane() == Lane::Moves => "dark",
            Paint::Beside(_) => "dark",
            _ => "pale",
        }
    }
}

impl Display for Paint {
    /// The class in the style sheet.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Paint::Op(Way::Down(nth), kind) => write!(f, "d{nth}{}", kind.letter()),
            Paint::Op(Way::Up(nth), kind) => write!(f, "u{nth}{}", kind.letter()),
            Paint::Beside(work) => write!(f, "x{}", work.0),
            Paint::Step => f.write_str("step"),
            Paint::Sum => f.write_str("sum"),
            Paint::Idle => f.write_str("idle"),
        }
    }
}

/// The pale, medium, strong and dark tone of a pipe, where there are `n_pipes`: of a forward, a
/// weight half, an input half and a whole backward.
pub fn tones(pipe: PipeId, n_pipes: usize) -> [&'static str; 4] {
    Way::of(pipe, n_pipes).tones()
}

/// The style sheet of a drawing with `paints`.
pub(super) fn style(paints: impl Iterator<Item = Paint>) -> String {
    let mut style = STYLE.to_string();
    for paint in paints {
        if let Paint::Beside(work) = paint {
            let fill = BESIDE[work.index() % BESIDE.len()];
            let _ = writeln!(style, ".chimera .{paint} {{ fill: {fill}; }}");
        }
        if let Paint::Op(way, kind) = paint {
            let [pale, medium, strong, dark] = way.tones();
            let colours = match kind {
                Kind::Forward => format!("fill: {pale};"),
                Kind::Recompute => format!("fill: {pale}; stroke: {dark}; stroke-dasharray: 2 2;"),
                Kind::BackwardWeight => format!("fill: {medium};"),
                Kind::BackwardInput => format!("fill: {strong};"),
                Kind::Backward => format!("fill: {dark};"),
                Kind::Offload | Kind::Keep => format!("fill: {pale}; stroke: {strong};"),
                Kind::Reload | Kind::Return => format!("fill: {medium}; stroke: {dark};"),
                Kind::Work(_) => continue, // never the op of a pipe
            };
            let _ = writeln!(style, ".chimera .{paint} {{ {colours} }}");
        }
    }
    style
}
