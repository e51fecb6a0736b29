//! Which values an op eats and makes: the one rule that everything else follows from.
//!
//! The checker, the memory model, the simulator and the engine are machines over this rule; none of
//! them says again when an op may run. Inputs and targets of a step are there from the start and
//! losses are only collected, so they need no tokens.

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::few::Few;
use crate::graph::StageGraph;
use crate::ids::{PipeId, StageId, WorkerId};
use crate::op::{Cell, Kind, Op, Span};
use crate::timetable::Timetable;

/// What kind of value a token stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TokenKind {
    /// The output of a stage on one of its output edges, eaten by the forward of the stage that the edge leads to.
    Activation,
    /// The gradient of that output, made by the backward of the stage that the edge leads to, and eaten by the backward
    /// of the stage where it begins. That of [`StageGraph::loss`] is the loss's own, made by the forward of the stage that
    /// has the loss.
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
    /// What the slices of a sequence up to one leave for the next of them, such as keys and values: made by the forward of
    /// one slice, eaten by the forward of the next (see [`Timetable::is_sliced`]).
    Past,
    /// The gradient of a [`TokenKind::Past`], summed over the slices that read it: made by the backward of one slice, eaten
    /// by the backward of the one before it.
    PastGradient,
    /// Saved activations that have left the memory of their worker, eaten by the [`Kind::Reload`], or by the
    /// [`Kind::Keep`] of another worker.
    Away,
    /// Saved activations that another worker keeps.
    Guest,
    /// Saved activations on their way back from another worker.
    Back,
    /// Saved activations that are back, eaten by the backward in the place of [`TokenKind::Saved`].
    Reloaded,
    /// Memory that compute has freed for saved activations that are moved in. As the two kinds below, it is named by the op
    /// that fills it, and made by an instruction of its own.
    Freed,
    /// Memory that a move has freed for compute.
    Vacated,
    /// Memory that a move has freed for saved activations from another worker.
    Released,
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
            TokenKind::Past => "past",
            TokenKind::PastGradient => "past-gradient",
            TokenKind::Away => "away",
            TokenKind::Guest => "guest",
            TokenKind::Back => "back",
            TokenKind::Reloaded => "reloaded",
            TokenKind::Freed => "freed",
            TokenKind::Vacated => "vacated",
            TokenKind::Released => "released",
        }
    }

    /// Whether it may come from the other lane of its worker, so that who eats it waits for it.
    pub fn crosses_lanes(self) -> bool {
        self == TokenKind::Reloaded || self.is_memory()
    }

    /// Whether it stands for memory, and not for a value.
    pub fn is_memory(self) -> bool {
        matches!(self, TokenKind::Freed | TokenKind::Vacated | TokenKind::Released)
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
    /// The stage that eats it.
    pub to: StageId,
    /// The micro-batch units it covers.
    pub span: Span,
}

impl Token {
    /// Its edge, from the earlier stage to the later one, if it goes along one: an activation of it forward, a gradient
    /// back. A loss begins on an edge too, to [`StageGraph::loss`].
    pub fn edge(&self) -> Option<(StageId, StageId)> {
        match self.kind {
            TokenKind::Activation => Some((self.stage, self.to)),
            TokenKind::Gradient => Some((self.to, self.stage)),
            TokenKind::Saved
            | TokenKind::Kept
            | TokenKind::Deferred
            | TokenKind::Version
            | TokenKind::Past
            | TokenKind::PastGradient
            | TokenKind::Away
            | TokenKind::Guest
            | TokenKind::Back
            | TokenKind::Reloaded
            | TokenKind::Freed
            | TokenKind::Vacated
            | TokenKind::Released => None,
        }
    }

    /// Whether it goes along an edge between stages that are not numbered one after the other.
    pub fn skips(&self) -> bool {
        self.edge().is_some_and(|(from, to)| u32::from(from.0) + 1 != u32::from(to.0))
    }
}

/// In two words, since tokens are looked up all the time.
impl Hash for Token {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Token { kind, pipe, stage, to, span } = *self;
        let (kind, pipe) = (kind as u64, u64::from(pipe.0));
        let (stage, len) = (u64::from(stage.0), u64::from(span.len));
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
            TokenKind::Version => "weight version",
            TokenKind::Past => "past of the slice",
            TokenKind::PastGradient => "gradient from later slices",
            TokenKind::Away => "offloaded activations",
            TokenKind::Guest => "kept activations",
            TokenKind::Back => "returned activations",
            TokenKind::Reloaded => "reloaded activations",
            TokenKind::Freed => "memory that compute frees for activations",
            TokenKind::Vacated => "memory that a move frees for activations",
            TokenKind::Released => "memory that a move frees for another worker's activations",
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

/// The tokens of an op or a cell, in a fixed order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Effects {
    /// Must be live before it runs, and are gone after.
    pub eats: Few<Token>,
    /// Are live after it ran.
    pub makes: Few<Token>,
}

/// What the effects of an op depend on beside the op itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Rules {
    graph: StageGraph,
    /// `(pipe, stage)` whose forwards keep their input instead of their saved activations, sorted.
    recomputed: Vec<(PipeId, StageId)>,
    /// `(pipe, stage)` whose forwards keep a part of their saved activations, sorted.
    selective: Vec<(PipeId, StageId)>,
    /// Whether weights may change between a forward and its backward.
    keeps_versions: bool,
    /// Slices of the sequence of a micro-batch; 1 where its units are no slices.
    n_slices: u32,
    moves: MovedUnits,
}

/// One unit at a stage of a pipe.
pub(crate) type UnitAt = (PipeId, StageId, u32);

/// Units whose saved activations are moved, sorted.
#[derive(Clone, PartialEq, Eq, Default)]
struct MovedUnits {
    offloaded: Vec<UnitAt>,
    /// Units that another worker keeps, with the worker.
    kept: Vec<(UnitAt, WorkerId)>,
}

impl MovedUnits {
    fn of(timetable: &Timetable) -> MovedUnits {
        let mut moves = MovedUnits::default();
        for (worker, row) in (0..).map(WorkerId).zip(&timetable.rows) {
            for op in row.iter().flat_map(Cell::ops) {
                let units = op.span.units().map(|unit| (op.pipe, op.stage, unit));
                match op.kind {
                    Kind::Offload => moves.offloaded.extend(units),
                    Kind::Keep => moves.kept.extend(units.map(|unit| (unit, worker))),
                    _ => {}
                }
            }
        }
        moves.offloaded.sort_unstable();
        moves.kept.sort_unstable();
        moves
    }
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
        let n_slices = timetable.n_slices();
        let (graph, moves) = (timetable.graph.clone(), MovedUnits::of(timetable));
        Rules { graph, recomputed, selective, keeps_versions, n_slices, moves }
    }

    /// Which stages feed which.
    pub fn graph(&self) -> &StageGraph {
        &self.graph
    }

    /// Stages of pipes whose forwards keep a part of their saved activations, ascending.
    pub(crate) fn selective(&self) -> &[(PipeId, StageId)] {
        &self.selective
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

    /// Slices of the sequence of a micro-batch, each a unit; 1 where units are no slices.
    pub fn n_slices(&self) -> u32 {
        self.n_slices
    }

    /// Whether some saved activations are moved.
    pub fn has_moves(&self) -> bool {
        !self.moves.offloaded.is_empty()
    }

    /// Whether the saved activations of a unit leave the memory of their worker between forward and backward.
    pub fn is_offloaded(&self, pipe: PipeId, stage: StageId, unit: u32) -> bool {
        self.has_moves() && self.moves.offloaded.binary_search(&(pipe, stage, unit)).is_ok()
    }

    /// The worker that keeps the saved activations of a unit for another one, if one does.
    pub fn keeper(&self, pipe: PipeId, stage: StageId, unit: u32) -> Option<WorkerId> {
        let kept = &self.moves.kept;
        let at = kept.binary_search_by_key(&(pipe, stage, unit), |(unit, _)| *unit).ok()?;
        Some(kept[at].1)
    }

    /// Whether an op is a move that takes the time of a transfer. Of the two ends of a move between workers, the one that
    /// sends does.
    pub fn is_transfer(&self, op: &Op) -> bool {
        match op.kind {
            Kind::Offload | Kind::Return => true,
            Kind::Reload => self.keeper(op.pipe, op.stage, op.span.start).is_none(),
            _ => false,
        }
    }

    /// What `op` eats and makes.
    pub fn effects(&self, op: &Op) -> Effects {
        let mut effects = Effects::default();
        self.add(op, &mut effects);
        effects
    }

    /// What the ops of `cell` eat and make together. The ops of a pair do not feed each other.
    pub fn cell_effects(&self, cell: &Cell) -> Effects {
        let mut effects = Effects::default();
        self.set_cell_effects(cell, &mut effects);
        effects
    }

    /// [`cell_effects`](Rules::cell_effects), in the place of what `effects` was: for loops over many cells.
    pub(crate) fn set_cell_effects(&self, cell: &Cell, effects: &mut Effects) {
        effects.eats.clear();
        effects.makes.clear();
        match cell {
            Cell::One(op) => self.add(op, effects),
            Cell::Pair(a, b) => [a, b].into_iter().for_each(|op| self.add(op, effects)),
        }
    }

    fn add(&self, op: &Op, e: &mut Effects) {
        let Op { kind, pipe, stage, span } = *op;
        let along = |kind, stage, to| Token { kind, pipe, stage, to, span };
        let whole = |kind| along(kind, stage, stage);
        // Of what another rank says it did, the stage may be any; one that does not exist has no edges.
        let (inputs, outputs) = (self.graph.inputs(stage), self.graph.outputs(stage));
        match kind {
            Kind::Forward => {
                for &from in inputs {
                    e.eats.push(along(TokenKind::Activation, from, stage));
                }
                for &to in outputs {
                    if to == self.graph.loss() {
                        push_units(&mut e.makes, along(TokenKind::Gradient, to, stage));
                    } else {
                        e.makes.push(along(TokenKind::Activation, stage, to));
                    }
                }
                let kept = match self.is_recomputed(pipe, stage) {
                    true => TokenKind::Kept,
                    false => TokenKind::Saved,
                };
                push_units(&mut e.makes, whole(kept));
            }
            Kind::Recompute => {
                push_units(&mut e.eats, whole(TokenKind::Kept));
                push_units(&mut e.makes, whole(TokenKind::Saved));
            }
            Kind::Backward | Kind::BackwardInput => {
                match self.has_moves() {
                    false => push_units(&mut e.eats, whole(TokenKind::Saved)),
                    true => self.push_saved(&mut e.eats, whole(TokenKind::Saved)),
                }
                for &to in outputs {
                    push_units(&mut e.eats, along(TokenKind::Gradient, to, stage));
                }
                for &from in inputs {
                    push_units(&mut e.makes, along(TokenKind::Gradient, stage, from));
                }
                if kind == Kind::BackwardInput {
                    push_units(&mut e.makes, whole(TokenKind::Deferred));
                }
            }
            Kind::BackwardWeight => push_units(&mut e.eats, whole(TokenKind::Deferred)),
            Kind::Offload | Kind::Reload | Kind::Keep | Kind::Return => {
                for unit in span.units() {
                    let one = |kind| Token { span: Span::one(unit), ..whole(kind) };
                    let left = match self.keeper(pipe, stage, unit) {
                        Some(_) => TokenKind::Back,
                        None => TokenKind::Away,
                    };
                    let (eaten, made) = match kind {
                        Kind::Offload => (TokenKind::Saved, TokenKind::Away),
                        Kind::Keep => (TokenKind::Away, TokenKind::Guest),
                        Kind::Return => (TokenKind::Guest, TokenKind::Back),
                        _ => (left, TokenKind::Reloaded),
                    };
                    e.eats.push(one(eaten));
                    e.makes.push(one(made));
                }
                return;
            }
        }
        if self.n_slices > 1 {
            self.add_past(op, e);
        }
        if self.keeps_versions {
            let version = whole(TokenKind::Version);
            if matches!(kind, Kind::Forward | Kind::Recompute) {
                push_units(&mut e.makes, version);
            }
            if matches!(kind, Kind::Recompute | Kind::Backward | Kind::BackwardInput) {
                push_units(&mut e.eats, version);
            }
        }
    }
}

impl Rules {
    /// The saved activations of each unit, from where a backward finds them.
    fn push_saved(&self, eats: &mut Few<Token>, saved: Token) {
        for unit in saved.span.units() {
            let kind = match self.is_offloaded(saved.pipe, saved.stage, unit) {
                true => TokenKind::Reloaded,
                false => TokenKind::Saved,
            };
            eats.push(Token { kind, span: Span::one(unit), ..saved });
        }
    }

    /// A slice reads what those before it left, and its backward comes before theirs. Recomputation reads what its forward
    /// kept.
    fn add_past(&self, op: &Op, e: &mut Effects) {
        let Op { kind, pipe, stage, span } = *op;
        let token = |kind, unit| Token { kind, pipe, stage, to: stage, span: Span::one(unit) };
        for unit in span.units() {
            let slice = unit % self.n_slices;
            let (is_first, is_last) = (slice == 0, slice + 1 == self.n_slices);
            match kind {
                Kind::Forward => {
                    if !is_first {
                        e.eats.push(token(TokenKind::Past, unit));
                    }
                    if !is_last {
                        e.makes.push(token(TokenKind::Past, unit.saturating_add(1)));
                    }
                }
                Kind::Backward | Kind::BackwardInput => {
                    if !is_last {
                        e.eats.push(token(TokenKind::PastGradient, unit));
                    }
                    if !is_first {
                        e.makes.push(token(TokenKind::PastGradient, unit - 1));
                    }
                }
                Kind::BackwardWeight | Kind::Recompute => {}
                Kind::Offload | Kind::Reload | Kind::Keep | Kind::Return => {}
            }
        }
    }
}

/// Of a chain the number of its stages stands for the graph: programs of chains have always read so, and their
/// fingerprints go by it.
impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rules { graph, recomputed, selective, keeps_versions, n_slices, moves } = self;
        let mut rules = f.debug_struct("Rules");
        rules.field("n_stages", &graph.n_stages());
        if !graph.is_chain() {
            rules.field("graph", &format_args!("{graph}"));
        }
        rules.field("recomputed", recomputed).field("selective", selective);
        rules.field("keeps_versions", keeps_versions);
        if *n_slices > 1 {
            rules.field("n_slices", n_slices);
        }
        if self.has_moves() {
            rules.field("offloaded", &moves.offloaded).field("kept", &moves.kept);
        }
        rules.finish()
    }
}

/// Adds a token for each unit of the span of `whole`.
#[inline]
fn push_units(tokens: &mut Few<Token>, whole: Token) {
    for unit in whole.span.units() {
        tokens.push(Token { span: Span::one(unit), ..whole });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(n_stages: usize) -> Rules {
        let recomputed = vec![(PipeId(0), StageId(1))];
        let graph = StageGraph::chain(n_stages);
        let moves = MovedUnits::default();
        Rules { graph, recomputed, selective: vec![], keeps_versions: false, n_slices: 1, moves }
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
    fn a_token_goes_along_each_edge() {
        let graph = StageGraph::new(4, &[0], &[(0, 1), (0, 3), (1, 2), (2, 3)], &[1, 3]);
        let r = Rules { graph: graph.expect("a graph"), ..rules(1) };
        let forward = show(&r, Kind::Forward, 0, Span::one(0));
        assert!(
            forward.starts_with(
                "[] -> [activation(pipe 0, stage 0, micro-batch 0), \
                 activation(pipe 0, stage 0 to stage 3, micro-batch 0), "
            ),
            "{forward}"
        );
        let exit = show(&r, Kind::Forward, 1, Span::one(0));
        assert!(exit.contains("gradient(pipe 0, stage 4 to stage 1, micro-batch 0)"), "{exit}");
        assert_eq!(
            show(&r, Kind::Backward, 3, Span::one(0)),
            "[saved activations(pipe 0, stage 3, micro-batch 0), gradient(pipe 0, stage 4, micro-batch 0)] \
             -> [gradient(pipe 0, stage 3 to stage 0, micro-batch 0), gradient(pipe 0, stage 3, micro-batch 0)]"
        );
        let backward = show(&r, Kind::Backward, 0, Span::one(0));
        assert!(
            backward.ends_with(
                "gradient(pipe 0, stage 1, micro-batch 0), \
                 gradient(pipe 0, stage 3 to stage 0, micro-batch 0)] -> []"
            ),
            "{backward}"
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
