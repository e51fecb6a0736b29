//! The moves of activations that cells wait for.

use rustc_hash::FxHashMap;

use super::input::{Input, Maker};
use super::timeline::{Timeline, Work};
use crate::effects::{Token, TokenKind};
use crate::ir::few::Few;
use crate::ir::ids::WorkerId;
use crate::ir::op::{Cell, Lane, Op};
use crate::program::{Instr, Program};

/// The moves of a timeline.
#[derive(Default)]
pub(in crate::analyze) struct MovedActivations {
    /// The event and the worker that made each token.
    makers: FxHashMap<Token, (Maker, WorkerId)>,
    freeing: FreeingMoves,
}

/// The moves that free the memory that a worker waits for right before a cell, by the cell's first
/// op.
type FreeingMoves = FxHashMap<(WorkerId, Op), Few<Op>>;

impl MovedActivations {
    pub(super) fn of(program: &Program, timeline: &Timeline) -> MovedActivations {
        let mut makers = FxHashMap::default();
        if !program.rules().has_moves() {
            return MovedActivations::default();
        }
        for (index, event) in (0..).zip(&timeline.events) {
            let Work::Move(op) = event.work else { continue };
            let maker = Maker { event: index, end: event.end };
            for token in program.rules().effects(&op).makes {
                makers.insert(token, (maker, event.worker));
                if token.kind == TokenKind::Back {
                    // If no event shows when it was put together, the time is that of its return.
                    let back = Token { kind: TokenKind::Reloaded, ..token };
                    let owner = program.placement().worker(token.pipe, token.stage);
                    makers.entry(back).or_insert((maker, owner));
                }
            }
        }
        MovedActivations { makers, freeing: freeing(program) }
    }

    /// A token that a move made, as an input of a worker's cell.
    pub(super) fn input(&self, worker: WorkerId, token: &Token) -> Option<Input> {
        let &(maker, by) = self.makers.get(token)?;
        Some(Input { token: *token, maker, is_own: by == worker })
    }

    /// The time at which the moves that a cell waits for were done, or 0 if it waits for none.
    /// `None` if they have no event, since they take no time.
    pub(in crate::analyze) fn before(
        &self,
        worker: WorkerId,
        cell: &Cell,
        program: &Program,
    ) -> Option<f64> {
        let rules = program.rules();
        if !rules.has_moves() {
            return Some(0.0);
        }
        let eaten = rules.cell_effects(cell).eats.into_iter();
        let reloaded = eaten.filter(|token| token.kind == TokenKind::Reloaded);
        let freed = self.freeing.get(&(worker, cell.parts().0)).into_iter().flatten();
        let freed = freed.flat_map(|op| rules.effects(op).makes);
        let made = |token: &Token| Some(self.makers.get(token)?.0.end);
        reloaded
            .chain(freed)
            .map(|token| made(&token))
            .try_fold(0.0, |last, made| Some(made?.max(last)))
    }
}

fn freeing(program: &Program) -> FreeingMoves {
    let mut freeing = FreeingMoves::default();
    for (worker, row) in (0..).map(WorkerId).zip(program.rows()) {
        let (mut gives, mut last) = (FxHashMap::<Token, Op>::default(), None);
        for instr in row {
            match instr {
                Instr::Run(cell) => last = Some(cell.parts().0),
                Instr::Give(token) if instr.lane() == Lane::Moves => {
                    gives.extend(last.map(|op| (*token, op)));
                }
                _ => {}
            }
        }
        let mut taken = Few::new();
        for instr in row {
            match instr {
                Instr::Take(token) => taken.extend(gives.get(token).copied()),
                Instr::Run(cell) if !taken.is_empty() => {
                    freeing.insert((worker, cell.parts().0), std::mem::take(&mut taken));
                }
                _ => {}
            }
        }
    }
    freeing
}
