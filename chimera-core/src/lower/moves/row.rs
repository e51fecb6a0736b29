//! Which saved activations of a worker's row leave its memory, and when they come back.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::activation_memory::{ActivationMemory, ROUNDING};
use crate::effects::{Rules, Token, TokenKind};
use crate::ids::WorkerId;
use crate::op::{Cell, Kind, Lane, Op};

/// A row with moves among its cells.
pub(super) struct MovingRow {
    pub(super) cells: Vec<Placed>,
}

/// A cell, and the cell of the row as it was that it can begin with.
#[derive(Clone, Copy)]
pub(super) struct Placed {
    pub(super) cell: Cell,
    pub(super) with: usize,
}

/// The cells of a row, in order.
pub(super) fn written(row: &MovingRow) -> Vec<Cell> {
    row.cells.iter().map(|placed| placed.cell).collect()
}

impl MovingRow {
    /// The row of a worker that holds no more than `most`, if it can: before a forward that would exceed it the saved
    /// activations go that are needed last, but not those made last, which could only go behind the forward that makes them.
    /// They come back as soon as there is room until they are needed, and at the latest during the backward before, in the
    /// place of those that are needed last. None goes twice.
    pub(super) fn new(
        worker: WorkerId,
        row: &[Cell],
        most: f64,
        (rules, memory): (&Rules, &ActivationMemory),
    ) -> MovingRow {
        let changes: Vec<_> = row.iter().map(|cell| memory.change(worker, cell, rules)).collect();
        let mut uses: FxHashMap<Token, usize> = FxHashMap::default();
        let mut eaten: Vec<Vec<Token>> = Vec::with_capacity(row.len());
        for (at, cell) in row.iter().enumerate() {
            let eats = rules.cell_effects(cell).eats;
            let saved = eats.into_iter().filter(|token| token.kind == TokenKind::Saved);
            eaten.push(saved.inspect(|token| _ = uses.insert(*token, at)).collect());
        }
        let mut moving = Moving {
            most,
            held: 0.0,
            here: Vec::new(),
            away: Vec::new(),
            has_moved: FxHashSet::default(),
            uses,
            cells: Vec::new(),
            memory,
        };
        for (at, cell) in row.iter().enumerate() {
            for token in &eaten[at] {
                moving.reload(token, at, at);
            }
            let (more, less) = changes[at];
            while more > 0.0 && moving.held + more > most + ROUNDING {
                let Some(last) = moving.last_needed(at, true) else { break };
                moving.offload(&last, at.saturating_sub(1));
            }
            let next = (at + 1..row.len()).find(|next| !eaten[*next].is_empty());
            while let Some(token) = moving.first_away() {
                // A backward makes room in time; what it frees is there for the next one.
                let may_swap = !eaten[at].is_empty() && next == Some(moving.uses[&token]);
                if !moving.has_room(&token, &changes[at..], at, may_swap) {
                    break;
                }
                moving.reload(&token, moving.uses[&token], at);
            }
            moving.cells.push(Placed { cell: *cell, with: at });
            moving.held += more - less;
            moving.here.retain(|token| !eaten[at].contains(token));
            let makes = rules.cell_effects(cell).makes;
            moving.here.extend(makes.into_iter().filter(|token| moving.uses.contains_key(token)));
        }
        MovingRow { cells: moving.cells }
    }

    /// Whether something is moved.
    pub(super) fn has_moves(&self) -> bool {
        self.cells.iter().any(|placed| placed.cell.lane() == Lane::Moves)
    }
}

/// A move of the saved activations that a token stands for.
fn op(kind: Kind, token: &Token) -> Op {
    let Token { pipe, stage, span, .. } = *token;
    Op { kind, pipe, stage, span }
}

/// What is where while a row is gone through.
struct Moving<'m> {
    most: f64,
    held: f64,
    /// In memory, in the order in which they came.
    here: Vec<Token>,
    away: Vec<Token>,
    /// What has gone once, which does not go again.
    has_moved: FxHashSet<Token>,
    /// By which cell each is eaten.
    uses: FxHashMap<Token, usize>,
    cells: Vec<Placed>,
    memory: &'m ActivationMemory,
}

impl Moving<'_> {
    /// What a token counts.
    fn amount(&self, token: &Token) -> f64 {
        self.memory.moved(&op(Kind::Offload, token))
    }

    /// Of those in memory, the one that is needed last, behind the cell `after`; perhaps none that was made last.
    fn last_needed(&self, after: usize, spares_newest: bool) -> Option<Token> {
        let n = self.here.len().saturating_sub(usize::from(spares_newest && self.here.len() > 1));
        let may_go = |token: &Token| self.uses[token] > after && !self.has_moved.contains(token);
        self.here[..n].iter().copied().filter(may_go).max_by_key(|token| self.uses[token])
    }

    fn first_away(&self) -> Option<Token> {
        self.away.iter().copied().min_by_key(|token| self.uses[token])
    }

    /// Whether there is room for what is away, before the cell `at` and until it is needed, while cells change what is held
    /// so; perhaps in the place of what is needed later.
    fn has_room(&self, token: &Token, changes: &[(f64, f64)], at: usize, may_swap: bool) -> bool {
        let (amount, needed) = (self.amount(token), self.uses[token]);
        let mut held = self.held + amount;
        if held > self.most + ROUNDING {
            let other = self.last_needed(needed, false).filter(|_| may_swap);
            held -= other.map_or(0.0, |other| self.amount(&other));
        }
        let mut until = changes.iter().take(needed.saturating_sub(at));
        held <= self.most + ROUNDING
            && until.all(|(more, less)| {
                let fits = held + more <= self.most + ROUNDING;
                held += more - less;
                fits
            })
    }

    fn offload(&mut self, token: &Token, with: usize) {
        self.here.retain(|other| other != token);
        self.away.push(*token);
        self.has_moved.insert(*token);
        self.held -= self.amount(token);
        self.cells.push(Placed { cell: op(Kind::Offload, token).into(), with });
    }

    /// Brings back what a cell needs, if it is away, in the place of others that are needed later.
    fn reload(&mut self, token: &Token, needed: usize, with: usize) {
        let Some(at) = self.away.iter().position(|other| other == token) else { return };
        let amount = self.amount(token);
        while self.held + amount > self.most + ROUNDING {
            let Some(last) = self.last_needed(needed, false) else { break };
            self.offload(&last, with);
        }
        self.away.remove(at);
        self.here.push(*token);
        self.held += amount;
        self.cells.push(Placed { cell: op(Kind::Reload, token).into(), with });
    }
}
