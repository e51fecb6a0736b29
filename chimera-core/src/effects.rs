//! Which values an op eats and makes: the one rule that everything else follows from.
//!
//! The checker, the memory model, the simulator and the engine are machines over this rule; none of
//! them says again when an op may run. Inputs and targets of a step are there from the start and
//! losses are only collected, so they need no tokens.

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::ids::{PipeId, StageId};
use crate::op::{Cell, Kind, Op, Span};
use crate::timetable::Timetable;

/// What kind of value a token stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum TokenKind {
    /// The output of a stage, eaten by the next stage's forward.
    Activation,
    /// The gradient of the input of a stage, eaten by the previous stage's backward. That of stage `S`
    /// is the loss's own, made by the forward of the last stage.
    Gradient,
    /// The saved activations of a forward, eaten by its backward.
    Saved,
    /// What a forward keeps so that a [`Kind::Recompute`] can make the saved activations: its input, or a part of
    /// the saved activations (see [`Rules::is_selective`]).
    Kept,
    /// What the weight half of a backward needs of its input half.
    Deferred,
    /// The version of the weights that a forward read, until its backward has read it too. There is one
    /// where weights may change in between (see [`Update`](crate::update::Update)).
    Version,
}

impl TokenKind {
    /// Its name in files: one word.
    pub fn name(self) -> &'static str {
        match self {
            TokenKind::Activation => "activation",
            TokenKind::Gradient => "gradient",
            TokenKind::Saved => "saved",
            TokenKind::Kept => "kept",
            TokenKind::Deferred => "deferred",
            TokenKind::Version => "version",
        }
    }
}

/// A value that one op makes and one op eats.
///
/// Activations travel in the span of their forward; everything else is cut into single units, so
/// that the halves of a micro-batch can go backward one by one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Token {
    /// What it stands for.
    pub kind: TokenKind,
    /// The pipe it belongs to.
    pub pipe: PipeId,
    /// The stage that makes it; for a gradient, the stage whose input it is the gradient of.
    pub stage: StageId,
    /// The micro-batch units it covers.
    pub span: Span,
}

/// In two words, since tokens are looked up all the time.
impl Hash for Token {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Token { kind, pipe, stage, span } = *self;
        let (kind, pipe) = (kind as u64, u64::from(pipe.0));
        let (stage, len) = (u64::from(stage.0), u64::from(span.len));
        state.write_u64(kind | pipe << 8 | stage << 24 | len << 40);
        state.write_u32(span.start);
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
            TokenKind::Version => "weight version",
        };
        write!(f, "{name}({}, {}, micro-batch {})", self.pipe, self.stage, self.span)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A few tokens, in a fixed order.
pub type Tokens = SmallVec<[Token; 4]>;

/// The tokens of an op or a cell.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Effects {
    /// Must be live before it runs, and are gone after.
    pub eats: Tokens,
    /// Are live after it ran.
    pub makes: Tokens,
}

/// What the effects of an op depend on beside the op itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules {
    n_stages: u16,
    /// `(pipe, stage)` whose forwards keep their input instead of their saved activations, sorted.
    recomputed: Vec<(PipeId, StageId)>,
    /// `(pipe, stage)` whose forwards keep a part of their saved activations, sorted.
    selective: Vec<(PipeId, StageId)>,
    /// Whether weights may change between a forward and its backward.
    keeps_versions: bool,
}

impl Rules {
    /// The rules of a timetable: a stage of a pipe is recomputed if it has a [`Kind::Recompute`].
    pub fn of(timetable: &Timetable) -> Rules {
        let mut recomputed: Vec<_> = timetable
            .ops()
            .filter(|op| op.kind == Kind::Recompute)
            .map(|op| (op.pipe, op.stage))
            .collect();
        recomputed.sort_unstable();
        recomputed.dedup();
        let mut selective = timetable.selective.clone();
        selective.sort_unstable();
        let keeps_versions = timetable.update.is_asynchronous();
        let n_stages = timetable.placement.n_stages() as u16;
        Rules { n_stages, recomputed, selective, keeps_versions }
    }

    /// Whether a stage of a pipe is recomputed.
    pub fn is_recomputed(&self, pipe: PipeId, stage: StageId) -> bool {
        self.recomputed.binary_search(&(pipe, stage)).is_ok()
    }

    /// Whether a forward of `stage` keeps a part of its saved activations, if it is recomputed at all.
    pub fn is_selective(&self, pipe: PipeId, stage: StageId) -> bool {
        self.selective.binary_search(&(pipe, stage)).is_ok()
    }

    /// Whether some pipe's forwards of `stage` are [selective](Rules::is_selective).
    pub fn is_selective_somewhere(&self, stage: StageId) -> bool {
        self.selective.iter().any(|(_, selective)| *selective == stage)
    }

    /// Whether weights may change between a forward and its backward.
    pub fn keeps_versions(&self) -> bool {
        self.keeps_versions
    }

    /// What `op` eats and makes.
    pub fn effects(&self, op: &Op) -> Effects {
        let Op { kind, pipe, stage, span } = *op;
        let whole = |kind, stage| Token { kind, pipe, stage, span };
        // Of what another rank says it did, the stage may be any.
        let next = StageId(stage.0.saturating_add(1));
        let (is_first, is_last) = (stage.0 == 0, next.0 == self.n_stages);
        let mut e = Effects::default();
        match kind {
            Kind::Forward => {
                if !is_first {
                    e.eats.push(whole(TokenKind::Activation, StageId(stage.0 - 1)));
                }
                if is_last {
                    push_units(&mut e.makes, whole(TokenKind::Gradient, next));
                } else {
                    e.makes.push(whole(TokenKind::Activation, stage));
                }
                let kept = match self.is_recomputed(pipe, stage) {
                    true => TokenKind::Kept,
                    false => TokenKind::Saved,
                };
                push_units(&mut e.makes, whole(kept, stage));
            }
            Kind::Recompute => {
                push_units(&mut e.eats, whole(TokenKind::Kept, stage));
                push_units(&mut e.makes, whole(TokenKind::Saved, stage));
            }
            Kind::Backward | Kind::BackwardInput => {
                push_units(&mut e.eats, whole(TokenKind::Saved, stage));
                push_units(&mut e.eats, whole(TokenKind::Gradient, next));
                if !is_first {
                    push_units(&mut e.makes, whole(TokenKind::Gradient, stage));
                }
                if kind == Kind::BackwardInput {
                    push_units(&mut e.makes, whole(TokenKind::Deferred, stage));
                }
            }
            Kind::BackwardWeight => push_units(&mut e.eats, whole(TokenKind::Deferred, stage)),
        }
        if self.keeps_versions {
            let version = whole(TokenKind::Version, stage);
            if matches!(kind, Kind::Forward | Kind::Recompute) {
                push_units(&mut e.makes, version);
            }
            if matches!(kind, Kind::Recompute | Kind::Backward | Kind::BackwardInput) {
                push_units(&mut e.eats, version);
            }
        }
        e
    }

    /// What the ops of `cell` eat and make together. The ops of a pair do not feed each other.
    pub fn cell_effects(&self, cell: &Cell) -> Effects {
        match cell {
            Cell::One(op) => self.effects(op),
            Cell::Pair(a, b) => {
                let (mut all, more) = (self.effects(a), self.effects(b));
                all.eats.extend(more.eats);
                all.makes.extend(more.makes);
                all
            }
        }
    }
}

/// Adds a token for each unit of the span of `whole`.
fn push_units(tokens: &mut Tokens, whole: Token) {
    for unit in whole.span.units() {
        tokens.push(Token { span: Span::one(unit), ..whole });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(n_stages: u16) -> Rules {
        let recomputed = vec![(PipeId(0), StageId(1))];
        Rules { n_stages, recomputed, selective: vec![], keeps_versions: false }
    }

    fn show(rules: &Rules, kind: Kind, stage: u16, span: Span) -> String {
        let e = rules.effects(&Op { kind, pipe: PipeId(0), stage: StageId(stage), span });
        format!("{:?} -> {:?}", e.eats, e.makes)
    }

    #[test]
    fn ends_of_the_pipe_touch_no_neighbour() {
        let r = rules(3);
        assert_eq!(
            show(&r, Kind::Forward, 0, Span::one(4)),
            "[] -> [activation(pipe 0, stage 0, micro-batch 4), saved activations(pipe 0, stage 0, micro-batch 4)]"
        );
        assert_eq!(
            show(&r, Kind::Backward, 0, Span::one(4)),
            "[saved activations(pipe 0, stage 0, micro-batch 4), gradient(pipe 0, stage 1, micro-batch 4)] -> []"
        );
    }

    #[test]
    fn an_op_of_no_stage_of_the_program_has_effects_too() {
        for kind in Kind::ALL {
            show(&rules(3), kind, u16::MAX, Span { start: u32::MAX, len: u16::MAX });
        }
    }

    #[test]
    fn a_span_travels_whole_and_goes_backward_by_unit() {
        let r = rules(3);
        assert_eq!(
            show(&r, Kind::Forward, 2, Span { start: 2, len: 2 }),
            "[activation(pipe 0, stage 1, micro-batch 2-3)] -> \
             [gradient(pipe 0, stage 3, micro-batch 2), gradient(pipe 0, stage 3, micro-batch 3), \
             saved activations(pipe 0, stage 2, micro-batch 2), saved activations(pipe 0, stage 2, micro-batch 3)]"
        );
    }

    #[test]
    fn a_version_lives_from_the_forward_to_the_backward() {
        let r = Rules { keeps_versions: true, ..rules(3) };
        let version = |stage| format!("weight version(pipe 0, stage {stage}, micro-batch 0)]");
        let eaten = |stage| format!("{} ->", version(stage));
        for stage in [0, 1] {
            let forward = show(&r, Kind::Forward, stage, Span::one(0));
            assert!(forward.ends_with(&version(stage)), "{forward}");
        }
        for kind in [Kind::Backward, Kind::BackwardInput] {
            let backward = show(&r, kind, 0, Span::one(0));
            assert!(backward.contains(&eaten(0)), "{backward}");
        }
        let recompute = show(&r, Kind::Recompute, 1, Span::one(0));
        assert!(recompute.contains(&eaten(1)) && recompute.ends_with(&version(1)), "{recompute}");
        assert!(!show(&r, Kind::BackwardWeight, 0, Span::one(0)).contains("version"));
    }

    #[test]
    fn a_recomputed_stage_keeps_its_input() {
        let r = rules(3);
        assert!(
            show(&r, Kind::Forward, 1, Span::one(0))
                .ends_with("checkpointed input(pipe 0, stage 1, micro-batch 0)]")
        );
        assert_eq!(
            show(&r, Kind::Recompute, 1, Span::one(0)),
            "[checkpointed input(pipe 0, stage 1, micro-batch 0)] -> [saved activations(pipe 0, stage 1, micro-batch 0)]"
        );
    }
}
