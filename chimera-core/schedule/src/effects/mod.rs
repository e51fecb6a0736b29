//! Effects: the values that an op eats and makes. Everything else follows from this one rule.
//!
//! The checker, the memory model, the simulator and the engine are machines over this rule; none of
//! them defines again when an op may run. Inputs and targets of a step are there from the start and
//! losses are only collected, so they need no tokens.

mod debug;
mod demand;
mod moved;
mod optional;
mod reads;
mod token;
mod work;

pub use self::demand::{Demand, Wanted};
use self::moved::MovedUnits;
use self::reads::window_of;
pub use self::reads::{Version, Weights};
pub use self::token::{Fill, Token, TokenKind};
pub use self::work::{OwnWork, Pieces};
use crate::ir::few::Few;
use crate::ir::graph::StageGraph;
use crate::ir::ids::{PipeId, StageId, WorkId, WorkerId};
use crate::ir::op::{Cell, Kind, Op, Span};
use crate::ir::timetable::Timetable;
use crate::ir::update::Window;

/// The tokens of an op or a cell, in a fixed order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Effects {
    /// Tokens that must be live before it runs, and are gone after.
    pub eats: Few<Token>,
    /// Tokens that are live after it has run.
    pub makes: Few<Token>,
    /// Weights that must be live while it runs, and stay. Empty if no op of the program can find
    /// them changed.
    pub reads: Few<Weights>,
}

/// Everything that the effects of an op depend on, except the op itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Rules {
    graph: StageGraph,
    demand: Demand,
    /// `(pipe, stage)` pairs that recompute: their forwards keep their input instead of their saved
    /// activations. Sorted.
    recomputed: Vec<(PipeId, StageId)>,
    /// `(pipe, stage)` pairs that recompute selectively: their forwards keep a part of their saved
    /// activations. Sorted.
    selective: Vec<(PipeId, StageId)>,
    /// Whether the version of the weights that a forward reads is kept for its backward.
    keeps_versions: bool,
    /// The window of updates; `None` if the only update comes after all compute.
    window: Option<Window>,
    /// Slices of the sequence of a micro-batch; 1 where its units are not slices.
    n_slices: u32,
    moves: MovedUnits,
    works: Vec<OwnWork>,
    /// Whether the replicas of each trained stage share its weights.
    pub(crate) shards_weights: bool,
}

/// One unit at a stage of a pipe.
pub type UnitAt = (PipeId, StageId, u32);

impl Rules {
    /// The rules of a timetable: a stage of a pipe is recomputed if it has a [`Kind::Recompute`].
    pub fn of(timetable: &Timetable) -> Rules {
        let recomputing = timetable.ops().filter(|op| op.kind == Kind::Recompute);
        let mut recomputed: Vec<_> = recomputing.map(|op| (op.pipe, op.stage)).collect();
        recomputed.sort_unstable();
        recomputed.dedup();
        let mut selective = timetable.selective.clone();
        selective.sort_unstable();
        Rules {
            graph: timetable.graph.clone(),
            demand: Demand::in_timetable(timetable),
            recomputed,
            selective,
            keeps_versions: timetable.update.row().keeps_versions(),
            window: window_of(timetable),
            n_slices: timetable.n_slices(),
            moves: MovedUnits::of(timetable),
            works: Vec::new(),
            shards_weights: false,
        }
    }

    /// The edges between stages.
    pub fn graph(&self) -> &StageGraph {
        &self.graph
    }

    /// The results that are wanted of each stage.
    pub fn demand(&self) -> &Demand {
        &self.demand
    }

    /// Stages of pipes that recompute selectively, ascending: their forwards keep a part of their
    /// saved activations.
    pub(crate) fn selective(&self) -> &[(PipeId, StageId)] {
        &self.selective
    }

    /// Returns true if a stage of a pipe is recomputed.
    pub fn is_recomputed(&self, pipe: PipeId, stage: StageId) -> bool {
        self.recomputed.binary_search(&(pipe, stage)).is_ok()
    }

    /// Returns true if a forward of `stage` keeps a part of its saved activations, if it is
    /// recomputed at all.
    pub fn is_selective(&self, pipe: PipeId, stage: StageId) -> bool {
        self.selective.binary_search(&(pipe, stage)).is_ok()
    }

    /// Returns true if some pipe's forwards of `stage` are [selective](Rules::is_selective).
    pub fn is_selective_somewhere(&self, stage: StageId) -> bool {
        self.selective.iter().any(|(_, selective)| *selective == stage)
    }

    /// Returns true if the version of the weights that a forward reads is kept for its backward.
    pub fn keeps_versions(&self) -> bool {
        self.keeps_versions
    }

    /// Slices of the sequence of a micro-batch, each of them a unit; 1 where units are not slices.
    pub fn n_slices(&self) -> u32 {
        self.n_slices
    }

    /// The caller's own works, by the ids in their ops.
    pub fn works(&self) -> &[OwnWork] {
        &self.works
    }

    /// Adds a caller's own works.
    pub(crate) fn add_works(&mut self, works: &[OwnWork]) {
        self.works.extend_from_slice(works);
    }

    /// Works whose pieces read the operands of backwards.
    pub fn works_on_backward(&self) -> impl Iterator<Item = WorkId> {
        let on_backward = |(_, work): &(usize, &OwnWork)| work.pieces == Pieces::OnBackward;
        self.works.iter().enumerate().filter(on_backward).map(|(id, _)| WorkId(id as u8))
    }

    /// Returns true if an op adds to a sum over the replicas of its stage.
    pub(crate) fn adds_to_sum(&self, op: &Op) -> bool {
        match op.kind {
            Kind::Work(id) => self.works_on_backward().any(|work| work == id),
            kind => kind.adds_gradient(),
        }
    }

    /// Returns true if some saved activations are moved.
    pub fn has_moves(&self) -> bool {
        !self.moves.offloaded.is_empty()
    }

    /// Returns true if some saved activations are moved to the host, which means that no other
    /// worker keeps them.
    pub fn has_moves_to_host(&self) -> bool {
        self.moves.offloaded.len() > self.moves.kept.len()
    }

    /// Returns true if the saved activations of a unit leave the memory of their worker between
    /// forward and backward.
    pub(crate) fn is_offloaded(&self, pipe: PipeId, stage: StageId, unit: u32) -> bool {
        self.has_moves() && self.moves.offloaded.binary_search(&(pipe, stage, unit)).is_ok()
    }

    /// The worker that keeps the saved activations of a unit for another one, if there is one.
    pub fn keeper(&self, pipe: PipeId, stage: StageId, unit: u32) -> Option<WorkerId> {
        let kept = &self.moves.kept;
        let at = kept.binary_search_by_key(&(pipe, stage, unit), |(unit, _)| *unit).ok()?;
        Some(kept[at].1)
    }

    /// Returns true if an op is a move that takes the time of a transfer. In a move between workers
    /// the sender's op takes it.
    pub fn is_transfer(&self, op: &Op) -> bool {
        match op.kind {
            Kind::Offload | Kind::Return => true,
            Kind::Reload => self.keeper(op.pipe, op.stage, op.span.start).is_none(),
            _ => false,
        }
    }

    /// The tokens that `op` eats and makes.
    pub fn effects(&self, op: &Op) -> Effects {
        let mut effects = Effects::default();
        self.add(op, &mut effects);
        effects
    }

    /// The tokens that the ops of `cell` eat and make together. The ops of a pair do not feed each
    /// other.
    pub fn cell_effects(&self, cell: &Cell) -> Effects {
        let mut effects = Effects::default();
        self.set_cell_effects(cell, &mut effects);
        effects
    }

    /// Like [`cell_effects`](Rules::cell_effects), but overwrites `effects`: for loops over many
    /// cells.
    pub(crate) fn set_cell_effects(&self, cell: &Cell, effects: &mut Effects) {
        effects.eats.clear();
        effects.makes.clear();
        effects.reads.clear();
        match cell {
            Cell::One(op) => self.add(op, effects),
            Cell::Pair(a, b) => [a, b].into_iter().for_each(|op| self.add(op, effects)),
        }
    }

    fn add(&self, op: &Op, e: &mut Effects) {
        let Op { kind, pipe, stage, span } = *op;
        let along = |kind, stage, to| Token { kind, pipe, stage, to, span };
        let whole = |kind| along(kind, stage, stage);
        // The op may come from another rank's report and name any stage; a missing stage has no
        // edges.
        let (inputs, outputs) = (self.graph.inputs(stage), self.graph.outputs(stage));
        let has_backward = self.demand.has_backward(stage);
        match kind {
            Kind::Forward => self.add_forward(op, e),
            Kind::Recompute => {
                push_units(&mut e.eats, whole(TokenKind::Kept));
                push_units(&mut e.makes, whole(TokenKind::Saved));
            }
            Kind::Backward | Kind::BackwardInput => {
                if self.has_moves() {
                    self.push_saved(&mut e.eats, whole(TokenKind::Saved));
                } else {
                    push_units(&mut e.eats, whole(TokenKind::Saved));
                }
                for &to in outputs {
                    push_units(&mut e.eats, along(TokenKind::Gradient, to, stage));
                }
                for &from in inputs.iter().filter(|from| self.demand.has_backward(**from)) {
                    push_units(&mut e.makes, along(TokenKind::Gradient, stage, from));
                }
                if kind == Kind::BackwardInput && self.demand.trains(stage) {
                    push_units(&mut e.makes, whole(TokenKind::Deferred));
                }
            }
            Kind::BackwardWeight => push_units(&mut e.eats, whole(TokenKind::Deferred)),
            Kind::Work(id) => {
                if self.adds_to_sum(op) {
                    push_units(&mut e.eats, whole(TokenKind::Shown(id)));
                }
                return;
            }
            Kind::Offload | Kind::Reload | Kind::Keep | Kind::Return => {
                self.add_move(op, whole(TokenKind::Saved), e);
                return;
            }
        }
        if self.n_slices > 1 {
            self.add_past(op, e);
        }
        if self.keeps_versions && has_backward {
            self.add_versions(kind, whole(TokenKind::Version), e);
        }
        if self.window.is_some() {
            e.reads.extend(self.reads(op));
        }
        if !self.works.is_empty() && kind.adds_gradient() {
            for work in self.works_on_backward() {
                push_units(&mut e.makes, whole(TokenKind::Shown(work)));
            }
        }
    }

    #[inline]
    fn add_forward(&self, op: &Op, e: &mut Effects) {
        let Op { pipe, stage, span, .. } = *op;
        let along = |kind, stage, to| Token { kind, pipe, stage, to, span };
        let (inputs, outputs) = (self.graph.inputs(stage), self.graph.outputs(stage));
        let has_backward = self.demand.has_backward(stage);
        for &from in inputs {
            e.eats.push(along(TokenKind::Activation, from, stage));
        }
        for &to in outputs {
            if to == self.graph.loss() {
                if !has_backward {
                    continue;
                }
                push_units(&mut e.makes, along(TokenKind::Gradient, to, stage));
            } else {
                e.makes.push(along(TokenKind::Activation, stage, to));
            }
        }
        let kept = if self.is_recomputed(pipe, stage) { TokenKind::Kept } else { TokenKind::Saved };
        if has_backward {
            push_units(&mut e.makes, along(kept, stage, stage));
        }
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
mod tests;
