//! The saved activations that leave the memory of a worker in its row, and the times when they come
//! back.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::activation_memory::{ActivationMemory, ROUNDING};
use crate::effects::{Rules, Token, TokenKind};
use crate::ir::ids::WorkerId;
use crate::ir::op::{Cell, Kind, Lane, Op};

/// A row with moves among its cells.
pub(super) struct MovingRow {
    pub(super) cells: Vec<Placed>,
}

/// A cell, and the cell of the original row that it can begin with.
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
    /// The row of a worker that holds no more than `most`, if possible. Before a forward that would
    /// exceed it, the saved activations that are needed last go, except the newest, which could
    /// only go after the forward that makes them. They come back as soon as there is room until
    /// they are needed, and at the latest during the backward before, instead of those that are
    /// needed last. Each goes at most once.
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
            here: FxHashMap::default(),
            arrivals: BTreeSet::new(),
            n_arrived: 0,
            may_go: BTreeMap::new(),
            away: BTreeMap::new(),
            uses,
            cells: Vec::new(),
            memory,
        };
        let mut eating = (0..row.len()).filter(|at| !eaten[*at].is_empty()).peekable();
        for (at, cell) in row.iter().enumerate() {
            for token in &eaten[at] {
                moving.reload(token, at, at);
            }
            let (more, less) = changes[at];
            while more > 0.0 && moving.held + more > most + ROUNDING {
                let Some(last) = moving.last_needed(at, true) else { break };
                moving.offload(&last, at.saturating_sub(1));
            }
            eating.next_if_eq(&at);
            while let Some((_, &token)) = moving.away.first_key_value() {
                // A backward makes room in time; the memory that it frees is available for the next
                // one.
                let may_swap = !eaten[at].is_empty() && eating.peek() == Some(&moving.uses[&token]);
                if !moving.has_room(&token, &changes[at..], at, may_swap) {
                    break;
                }
                moving.reload(&token, moving.uses[&token], at);
            }
            moving.cells.push(Placed { cell: *cell, with: at });
            moving.held += more - less;
            eaten[at].iter().for_each(|token| moving.leave(token));
            for token in rules.cell_effects(cell).makes {
                moving.make(token);
            }
        }
        MovingRow { cells: moving.cells }
    }

    /// Returns true if something is moved.
    pub(super) fn has_moves(&self) -> bool {
        self.cells.iter().any(|placed| placed.cell.lane() == Lane::Moves)
    }
}

/// A move of the saved activations that a token stands for.
fn op(kind: Kind, token: &Token) -> Op {
    let Token { pipe, stage, span, .. } = *token;
    Op { kind, pipe, stage, span }
}

/// The location of each saved activation, cell by cell.
struct Moving<'m> {
    most: f64,
    held: f64,
    /// Tokens in memory, each with its position among all arrivals.
    here: FxHashMap<Token, usize>,
    /// Positions of the tokens in memory.
    arrivals: BTreeSet<usize>,
    n_arrived: usize,
    /// Tokens in memory that have not been moved away, by use and then by arrival.
    may_go: BTreeMap<(usize, usize), Token>,
    /// Tokens that have been moved away, by use, and then in the order of the moves.
    away: BTreeMap<(usize, usize), Token>,
    /// The cell that eats each token.
    uses: FxHashMap<Token, usize>,
    cells: Vec<Placed>,
    memory: &'m ActivationMemory,
}

impl Moving<'_> {
    /// The amount that a token counts.
    fn amount(&self, token: &Token) -> f64 {
        self.memory.moved(&op(Kind::Offload, token))
    }

    /// The token in memory that is needed last, after the cell `after`; optionally not the newest
    /// one.
    fn last_needed(&self, after: usize, spares_newest: bool) -> Option<Token> {
        let spares = spares_newest && self.arrivals.len() > 1;
        let newest = if spares { self.arrivals.last() } else { None };
        let mut last = self.may_go.range((after + 1, 0)..).rev();
        let (_, token) = last.find(|((_, arrival), _)| Some(arrival) != newest)?;
        Some(*token)
    }

    /// Returns true if there is room for a token that is away, from before the cell `at` until it
    /// is needed, with the `changes` that cells make; optionally instead of one that is needed
    /// later.
    fn has_room(&self, token: &Token, changes: &[(f64, f64)], at: usize, may_swap: bool) -> bool {
        let amount = self.amount(token);
        let needed = self.uses[token];
        let mut held = self.held + amount;
        if held > self.most + ROUNDING {
            let other = if may_swap { self.last_needed(needed, false) } else { None };
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

    /// Adds the token of a cell to memory, if it is ever needed.
    fn make(&mut self, token: Token) {
        let Some(used) = self.uses.get(&token).copied() else { return };
        let arrival = self.arrive(&token);
        self.may_go.insert((used, arrival), token);
    }

    fn arrive(&mut self, token: &Token) -> usize {
        let arrival = self.n_arrived;
        self.n_arrived += 1;
        self.here.insert(*token, arrival);
        self.arrivals.insert(arrival);
        arrival
    }

    fn leave(&mut self, token: &Token) {
        let Some(arrival) = self.here.remove(token) else { return };
        self.arrivals.remove(&arrival);
        self.may_go.remove(&(self.uses[token], arrival));
    }

    fn offload(&mut self, token: &Token, with: usize) {
        self.leave(token);
        self.away.insert((self.uses[token], self.cells.len()), *token);
        self.held -= self.amount(token);
        self.cells.push(Placed { cell: op(Kind::Offload, token).into(), with });
    }

    /// Brings back a token that a cell needs, if it is away, instead of others that are needed
    /// later.
    fn reload(&mut self, token: &Token, needed: usize, with: usize) {
        let mut with_it = self.away.range((self.uses[token], 0)..=(self.uses[token], usize::MAX));
        let Some((&key, _)) = with_it.find(|(_, other)| *other == token) else { return };
        let amount = self.amount(token);
        while self.held + amount > self.most + ROUNDING {
            let Some(last) = self.last_needed(needed, false) else { break };
            self.offload(&last, with);
        }
        self.away.remove(&key);
        self.arrive(token);
        self.held += amount;
        self.cells.push(Placed { cell: op(Kind::Reload, token).into(), with });
    }
}
