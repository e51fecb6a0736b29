//! The values that ops make and eat.

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::ir::ids::{PipeId, StageId, WorkId};
use crate::ir::op::{Lane, Span};

/// The kind of value that a token stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TokenKind {
    /// The output of a stage on one of its output edges, eaten by the forward of the stage that the
    /// edge leads to.
    Activation,
    /// The gradient of that output, made by the backward of the stage that the edge leads to, and
    /// eaten by the backward of the stage where it begins. The gradient on
    /// [`StageGraph::loss`](crate::ir::graph::StageGraph::loss) is the loss's own, made by the
    /// forward of the stage that has the loss.
    Gradient,
    /// The saved activations of a forward, eaten by its backward.
    Saved,
    /// A checkpointed input: what a forward keeps so that a
    /// [`Kind::Recompute`](crate::ir::op::Kind::Recompute) can make the saved activations. It is
    /// the input, or a part of the saved activations (see
    /// [`Rules::is_selective`](super::Rules::is_selective)).
    Kept,
    /// The values that the weight half of a backward needs from its input half.
    Deferred,
    /// The version of the weights that a forward read, until its backward has read it too. It
    /// exists if weights may change in between (see [`Update`](crate::ir::update::Update)).
    Version,
    /// A version of the weights once a [`Kind::Recompute`](crate::ir::op::Kind::Recompute) has read
    /// it, until the backward has read it too.
    RecomputedVersion,
    /// The values that a slice of a sequence leaves for the next one, such as keys and values of
    /// all slices so far: made by the forward of one slice, eaten by the forward of the next (see
    /// [`Timetable::is_sliced`](crate::ir::timetable::Timetable::is_sliced)).
    Past,
    /// The gradient of a [`TokenKind::Past`], summed over the slices that read it: made by the
    /// backward of one slice, eaten by the backward of the one before it.
    PastGradient,
    /// Saved activations that have left the memory of their worker, eaten by the
    /// [`Kind::Reload`](crate::ir::op::Kind::Reload), or by the
    /// [`Kind::Keep`](crate::ir::op::Kind::Keep) of another worker.
    Away,
    /// Saved activations that another worker keeps.
    Guest,
    /// Saved activations on their way back from another worker.
    Back,
    /// Saved activations that are back, eaten by the backward instead of [`TokenKind::Saved`].
    Reloaded,
    /// Memory that an op of a lane has freed for an op of the other lane, or of another worker. It
    /// is named after the op that fills it, and made by a separate instruction.
    Memory(Lane, Fill),
    /// The inputs of linear layers and the gradients of their outputs, which the end of a backward
    /// hands to work [`OnBackward`](super::Pieces::OnBackward).
    Shown(WorkId),
}

impl TokenKind {
    /// Name of the kind in files: one word.
    pub fn name(self) -> &'static str {
        match self {
            TokenKind::Activation => "activation",
            TokenKind::Gradient => "gradient",
            TokenKind::Saved => "saved",
            TokenKind::Kept => "kept",
            TokenKind::Deferred => "deferred",
            TokenKind::Version => "version",
            TokenKind::RecomputedVersion => "recomputed-version",
            TokenKind::Past => "past",
            TokenKind::PastGradient => "past-gradient",
            TokenKind::Away => "away",
            TokenKind::Guest => "guest",
            TokenKind::Back => "back",
            TokenKind::Reloaded => "reloaded",
            TokenKind::Memory(..) => "memory",
            TokenKind::Shown(_) => "shown",
        }
    }

    /// A distinct number for each kind.
    fn number(self) -> u64 {
        match self {
            TokenKind::Activation => 0,
            TokenKind::Gradient => 1,
            TokenKind::Saved => 2,
            TokenKind::Kept => 3,
            TokenKind::Deferred => 4,
            TokenKind::Version => 5,
            TokenKind::Past => 6,
            TokenKind::PastGradient => 7,
            TokenKind::Away => 8,
            TokenKind::Guest => 9,
            TokenKind::Back => 10,
            TokenKind::Reloaded => 11,
            TokenKind::Memory(lane, fill) => 12 + 2 * fill as u64 + lane as u64,
            TokenKind::RecomputedVersion => 20,
            TokenKind::Shown(work) => 21 + u64::from(work.0),
        }
    }

    /// Returns true if it may come from the other lane of its worker, so that its eater waits for
    /// it.
    pub fn crosses_lanes(self) -> bool {
        self == TokenKind::Reloaded || self.is_memory()
    }

    /// Returns true if it stands for memory, and not for a value.
    pub fn is_memory(self) -> bool {
        matches!(self, TokenKind::Memory(..))
    }
}

/// The op that fills the memory of a [`TokenKind::Memory`]. Two ops of one unit may each wait for
/// memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Fill {
    /// A forward, with its saved activations.
    Forward,
    /// A recomputation, with the activations that it makes.
    Recompute,
    /// Saved activations of another worker.
    Guest,
    /// Saved activations that come back.
    Reload,
}

impl Fill {
    /// The lane that waits for the memory. If another worker sends the activations that fill it,
    /// the lane of the sender.
    pub fn lane(self) -> Lane {
        match self {
            Fill::Forward | Fill::Recompute => Lane::Compute,
            Fill::Guest | Fill::Reload => Lane::Moves,
        }
    }
}

/// A value that one op makes and one op eats.
///
/// Activations travel in the span of their forward; everything else is cut into single units, so
/// that the halves of a micro-batch can go backward one by one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Token {
    /// The kind of value.
    pub kind: TokenKind,
    /// The pipe it belongs to.
    pub pipe: PipeId,
    /// The stage that makes it. A gradient is the gradient of this stage's input.
    pub stage: StageId,
    /// The stage that eats it.
    pub to: StageId,
    /// The micro-batch units it covers.
    pub span: Span,
}

impl Token {
    /// The edge that the token travels along, from the earlier to the later stage, if there is one:
    /// an activation travels forward, a gradient back. A loss begins on an edge too, to
    /// [`StageGraph::loss`](crate::ir::graph::StageGraph::loss).
    pub fn edge(&self) -> Option<(StageId, StageId)> {
        match self.kind {
            TokenKind::Activation => Some((self.stage, self.to)),
            TokenKind::Gradient => Some((self.to, self.stage)),
            TokenKind::Saved
            | TokenKind::Kept
            | TokenKind::Deferred
            | TokenKind::Version
            | TokenKind::RecomputedVersion
            | TokenKind::Past
            | TokenKind::PastGradient
            | TokenKind::Away
            | TokenKind::Guest
            | TokenKind::Back
            | TokenKind::Reloaded
            | TokenKind::Memory(..)
            | TokenKind::Shown(_) => None,
        }
    }

    /// Returns true if it goes along an edge between stages with numbers that are not consecutive.
    pub fn skips(&self) -> bool {
        self.edge().is_some_and(|(from, to)| u32::from(from.0) + 1 != u32::from(to.0))
    }
}

/// Hashes two words, since tokens are looked up very often.
impl Hash for Token {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Token { kind, pipe, stage, to, span } = *self;
        let kind = kind.number();
        let pipe = u64::from(pipe.0);
        let stage = u64::from(stage.0);
        let len = u64::from(span.len);
        state.write_u64(kind | pipe << 8 | stage << 24 | len << 40);
        state.write_u32(span.start ^ u32::from(to.0) << 16);
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.kind {
            TokenKind::Activation => "activation",
            TokenKind::Gradient => "gradient",
            TokenKind::Saved => "saved activations",
            TokenKind::Kept => "checkpointed input",
            TokenKind::Deferred => "deferred weight work",
            TokenKind::Version | TokenKind::RecomputedVersion => "weight version",
            TokenKind::Past => "past of the slice",
            TokenKind::PastGradient => "gradient from later slices",
            TokenKind::Away => "offloaded activations",
            TokenKind::Guest => "kept activations",
            TokenKind::Back => "returned activations",
            TokenKind::Reloaded => "reloaded activations",
            TokenKind::Memory(Lane::Compute, _) => "memory that compute frees for activations",
            TokenKind::Memory(Lane::Moves, _) => "memory that a move frees for activations",
            TokenKind::Shown(_) => "operands that other work reads",
        };
        write!(f, "{name}({}, {}", self.pipe, self.stage)?;
        if self.skips() {
            write!(f, " to {}", self.to)?;
        }
        write!(f, ", micro-batch {})", self.span)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
