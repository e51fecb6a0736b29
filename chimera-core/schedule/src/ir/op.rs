//! The work of a worker: an [`Op`] on a [`Span`] of micro-batches, one or two of them in a
//! [`Cell`], on a [`Lane`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ir::ids::{PipeId, StageId, WorkId};

/// The kind of an op: its effect on its stage. A new kind is a breaking change, since every engine
/// must be able to run it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// The forward pass.
    Forward,
    /// The whole backward pass: input half, then weight half.
    Backward,
    /// The half of the backward pass that makes the gradient of the stage's input.
    BackwardInput,
    /// The half of the backward pass that adds to the gradient of the stage's weights.
    BackwardWeight,
    /// The forward pass again, from the input that was kept, to make the saved activations.
    Recompute,
    /// Moves saved activations out of their worker's memory: to its host, or to the worker that has
    /// the [`Kind::Keep`].
    Offload,
    /// Moves saved activations back into their worker's memory.
    Reload,
    /// Receives the saved activations that another worker offloads.
    Keep,
    /// Returns saved activations to the worker that reloads them.
    Return,
    /// A piece of a caller's own work, see [`OwnWork`](crate::effects::OwnWork).
    Work(WorkId),
}

/// A lane of a worker. The ops of one lane run one after the other; the lanes run in parallel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Lane {
    /// Compute.
    Compute,
    /// Moves of saved activations.
    Moves,
}

impl Lane {
    /// Both lanes, by their [index](Lane::index).
    pub const ALL: [Lane; 2] = [Lane::Compute, Lane::Moves];

    /// Index of the lane in [`ALL`](Lane::ALL).
    pub fn index(self) -> usize {
        self as usize
    }

    /// Name of the lane in files.
    pub fn name(self) -> &'static str {
        match self {
            Lane::Compute => "compute",
            Lane::Moves => "moves",
        }
    }

    /// The other lane.
    pub fn other(self) -> Lane {
        match self {
            Lane::Compute => Lane::Moves,
            Lane::Moves => Lane::Compute,
        }
    }
}

impl Kind {
    /// Every kind that a timetable may have, in the order of their definition: all but
    /// [`Kind::Work`], which is added to programs.
    pub const ALL: [Kind; 9] = [
        Kind::Forward,
        Kind::Backward,
        Kind::BackwardInput,
        Kind::BackwardWeight,
        Kind::Recompute,
        Kind::Offload,
        Kind::Reload,
        Kind::Keep,
        Kind::Return,
    ];

    /// The letter of the kind in drawings and files: `F B I W R O L K T`, and `X` for a caller's
    /// own work.
    pub fn letter(self) -> char {
        match self {
            Kind::Forward => 'F',
            Kind::Backward => 'B',
            Kind::BackwardInput => 'I',
            Kind::BackwardWeight => 'W',
            Kind::Recompute => 'R',
            Kind::Offload => 'O',
            Kind::Reload => 'L',
            Kind::Keep => 'K',
            Kind::Return => 'T',
            Kind::Work(_) => 'X',
        }
    }

    /// Name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Forward => "forward",
            Kind::Backward => "backward",
            Kind::BackwardInput => "input half",
            Kind::BackwardWeight => "weight half",
            Kind::Recompute => "recompute",
            Kind::Offload => "offload",
            Kind::Reload => "reload",
            Kind::Keep => "keep",
            Kind::Return => "return",
            Kind::Work(_) => "work beside the training",
        }
    }

    /// The lane that the op runs on.
    pub fn lane(self) -> Lane {
        match self {
            Kind::Offload | Kind::Reload | Kind::Keep | Kind::Return => Lane::Moves,
            Kind::Forward
            | Kind::Backward
            | Kind::BackwardInput
            | Kind::BackwardWeight
            | Kind::Recompute
            | Kind::Work(_) => Lane::Compute,
        }
    }

    /// The kind of a letter, see [`letter`](Kind::letter).
    pub fn from_letter(letter: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| letter.chars().eq([k.letter()]))
    }

    /// Returns true if the op needs the saved activations of a forward.
    pub(crate) fn eats_saved(self) -> bool {
        matches!(self, Kind::Backward | Kind::BackwardInput)
    }

    /// Returns true if the op adds to the gradient of its stage's weights.
    pub fn adds_gradient(self) -> bool {
        matches!(self, Kind::Backward | Kind::BackwardWeight)
    }
}

/// A contiguous, non-empty range of micro-batch units.
///
/// A unit is a whole micro-batch, or a part of one where a schedule cuts them
/// (see [`Timetable::units_per_micro`](crate::ir::timetable::Timetable::units_per_micro)).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Span {
    /// The first unit.
    pub start: u32,
    /// Number of units, at least one.
    pub len: u16,
}

impl Span {
    /// The span of the single unit `unit`.
    pub fn one(unit: u32) -> Span {
        Span { start: unit, len: 1 }
    }

    /// The units of the span, in order.
    pub fn units(self) -> std::ops::Range<u32> {
        self.start..self.start.saturating_add(u32::from(self.len))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.len {
            0 => write!(f, "none"),
            1 => write!(f, "{}", self.start),
            _ => write!(f, "{}-{}", self.start, self.units().end - 1),
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One piece of compute: a kind of pass, of one stage of one pipe, on one span of micro-batches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Op {
    /// The kind of pass.
    pub kind: Kind,
    /// The pipe: one traversal of the stages.
    pub pipe: PipeId,
    /// The stage: one piece of the model.
    pub stage: StageId,
    /// The micro-batch units.
    pub span: Span,
}

impl Op {
    /// An op on one unit.
    pub fn new(kind: Kind, pipe: PipeId, stage: StageId, unit: u32) -> Op {
        Op { kind, pipe, stage, span: Span::one(unit) }
    }

    /// The forward of one unit through a stage of a pipe.
    pub fn forward(pipe: u16, stage: u16, unit: u32) -> Op {
        Op::new(Kind::Forward, PipeId(pipe), StageId(stage), unit)
    }

    /// The whole backward of one unit through a stage of a pipe.
    pub fn backward(pipe: u16, stage: u16, unit: u32) -> Op {
        Op::new(Kind::Backward, PipeId(pipe), StageId(stage), unit)
    }

    /// The input half of a backward.
    pub fn backward_input(pipe: u16, stage: u16, unit: u32) -> Op {
        Op::new(Kind::BackwardInput, PipeId(pipe), StageId(stage), unit)
    }

    /// The weight half of a backward.
    pub fn backward_weight(pipe: u16, stage: u16, unit: u32) -> Op {
        Op::new(Kind::BackwardWeight, PipeId(pipe), StageId(stage), unit)
    }

    /// The recomputation of one unit's saved activations.
    pub fn recompute(pipe: u16, stage: u16, unit: u32) -> Op {
        Op::new(Kind::Recompute, PipeId(pipe), StageId(stage), unit)
    }

    /// The micro-batch units that the op passes through its stage. A piece of a caller's own work
    /// has none: its span may be the number of the piece.
    pub fn micro_batch_units(&self) -> std::ops::Range<u32> {
        match self.kind {
            Kind::Work(_) => 0..0,
            _ => self.span.units(),
        }
    }

    /// The op on `len` units from its own first unit.
    pub fn over(self, len: u16) -> Op {
        Op { span: Span { len, ..self.span }, ..self }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}({}, {}, micro-batch {})",
            self.kind.letter(),
            self.pipe,
            self.stage,
            self.span
        )
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One position of a worker's row: an op, or a pair of ops that run together.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cell {
    /// One op.
    One(Op),
    /// Two ops as one atomic step, such as DualPipe's overlapped forward and backward.
    Pair(Op, Op),
}

impl Cell {
    /// The ops of the cell, in order.
    pub fn ops(&self) -> impl Iterator<Item = Op> + use<> {
        let (first, second) = self.parts();
        std::iter::once(first).chain(second)
    }

    /// Returns its op, or both ops of a pair.
    pub(crate) fn parts(self) -> (Op, Option<Op>) {
        match self {
            Cell::One(op) => (op, None),
            Cell::Pair(a, b) => (a, Some(b)),
        }
    }

    /// The lane that the cell runs on. A pair runs on the compute lane.
    pub fn lane(&self) -> Lane {
        match self {
            Cell::One(op) => op.kind.lane(),
            Cell::Pair(..) => Lane::Compute,
        }
    }

    /// Replaces the ops of a cell.
    pub fn map(self, mut other: impl FnMut(Op) -> Op) -> Cell {
        match self {
            Cell::One(op) => Cell::One(other(op)),
            Cell::Pair(a, b) => Cell::Pair(other(a), other(b)),
        }
    }
}

impl From<Op> for Cell {
    fn from(op: Op) -> Cell {
        Cell::One(op)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cell::One(op) => write!(f, "{op}"),
            Cell::Pair(a, b) => write!(f, "pair({a}, {b})"),
        }
    }
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
