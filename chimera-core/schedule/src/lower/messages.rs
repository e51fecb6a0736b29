//! The pass that adds messages: a token that is eaten on another worker than it was made on is sent
//! right after it is made and received right before it is eaten. The same holds for memory, if an
//! op waits for memory that another lane frees.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use super::memory::{MemoryWaits, waits};
use crate::effects::{Effects, Rules, Token, TokenKind};
use crate::ir::graph::StageGraph;
use crate::ir::ids::{ChannelId, WorkerId};
use crate::ir::op::{Cell, Kind, Op};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;
use crate::program::{Channel, Instr};

/// The rows of `timetable` with sends and receives, and the channels they use, in order of first
/// use.
///
/// A recomputation on demand runs after the receives of its own backward, and after everything that
/// its channels carry before them.
pub(super) fn insert(timetable: &Timetable, rules: &Rules) -> (Vec<Vec<Instr>>, Vec<Channel>) {
    let mut channels = Channels::new(&timetable.placement, rules);
    let mut effects = Effects::default();
    let memory = waits(timetable, rules);
    let made = timetable.on_demand.then(|| order_of_gradients(timetable, rules));
    let mut lower_row = |(worker, row): (WorkerId, &Vec<Cell>)| {
        // A cell has about one send and one receive, and a row a few reductions and updates. With no
        // room for these, a long row would be copied for them.
        let mut instrs = Vec::with_capacity(row.len() * 3 + row.len() / 16 + 16);
        let mut early =
            made.as_ref().map(|made| EarlyReceives::of(row, made, rules, &mut channels));
        for (at, cell) in row.iter().enumerate() {
            rules.set_cell_effects(cell, &mut effects);
            if let Some(early) = &mut early {
                early.before(cell, &mut instrs);
            }
            for token in &effects.eats {
                let Some(channel) = channels.of(token) else { continue };
                if early.as_mut().is_none_or(|early| early.is_left(token, channel)) {
                    instrs.push(Instr::Recv(*token, channel));
                }
            }
            memory.before(worker, at, &mut channels, &mut instrs);
            instrs.push(Instr::Run(*cell));
            let sent = effects.makes.iter().filter_map(|t| Some(Instr::Send(*t, channels.of(t)?)));
            instrs.extend(sent);
            memory.after(worker, at, &mut channels, &mut instrs);
        }
        instrs
    };
    let rows = (0..).map(WorkerId).zip(&timetable.rows).map(&mut lower_row).collect();
    (rows, channels.all)
}

/// The position of each gradient among all gradients, row by row in the order in which they are
/// made. A channel carries them in this order.
fn order_of_gradients(timetable: &Timetable, rules: &Rules) -> FxHashMap<Token, usize> {
    let cells = timetable.rows.iter().flatten();
    let made = cells.flat_map(|cell| rules.cell_effects(cell).makes);
    let gradients = made.filter(|token| token.kind == TokenKind::Gradient);
    gradients.enumerate().map(|(at, token)| (token, at)).collect()
}

/// The messages that a row receives for recomputations on demand, before the cells that eat them.
struct EarlyReceives {
    /// By recomputation: the gradients that its backward receives.
    gradients: FxHashMap<Op, Vec<(Token, ChannelId)>>,
    /// Messages that the row has not received yet, by channel; gradients in the order in which they
    /// are sent.
    left: FxHashMap<ChannelId, VecDeque<Token>>,
}

impl EarlyReceives {
    fn of(
        row: &[Cell],
        made: &FxHashMap<Token, usize>,
        rules: &Rules,
        channels: &mut Channels<'_>,
    ) -> EarlyReceives {
        let mut gradients = FxHashMap::default();
        let mut left: FxHashMap<ChannelId, VecDeque<Token>> = FxHashMap::default();
        let mut recomputed: FxHashMap<Token, Op> = FxHashMap::default();
        for op in row.iter().flat_map(Cell::ops) {
            let Effects { eats, makes, .. } = rules.effects(&op);
            if op.kind == Kind::Recompute {
                recomputed.extend(makes.iter().map(|token| (*token, op)));
            }
            let made_by: FxHashSet<Op> =
                eats.iter().filter_map(|token| recomputed.get(token)).copied().collect();
            for token in eats {
                let Some(channel) = channels.of(&token) else { continue };
                left.entry(channel).or_default().push_back(token);
                if token.kind != TokenKind::Gradient {
                    continue;
                }
                for recompute in &made_by {
                    let of_it: &mut Vec<_> = gradients.entry(*recompute).or_default();
                    of_it.push((token, channel));
                }
            }
        }
        for tokens in left.values_mut() {
            tokens.make_contiguous().sort_by_key(|token| made.get(token));
        }
        EarlyReceives { gradients, left }
    }

    /// Adds the receives before a cell for the recomputations in it. A channel keeps its order, so
    /// its earlier messages are received too.
    fn before(&mut self, cell: &Cell, instrs: &mut Vec<Instr>) {
        let of_cell = cell.ops().flat_map(|op| self.gradients.remove(&op).unwrap_or_default());
        for (gradient, channel) in of_cell {
            let Some(left) = self.left.get_mut(&channel) else { continue };
            let n_received =
                left.iter().position(|token| *token == gradient).map_or(0, |at| at + 1);
            instrs.extend(left.drain(..n_received).map(|token| Instr::Recv(token, channel)));
        }
    }

    /// Removes `token` from the remaining messages. Returns false if it was received earlier.
    fn is_left(&mut self, token: &Token, channel: ChannelId) -> bool {
        let left = self.left.get_mut(&channel);
        left.is_some_and(|left| {
            let at = left.iter().position(|other| other == token);
            at.and_then(|at| left.remove(at)).is_some()
        })
    }
}

impl MemoryWaits {
    /// Adds the instructions before a cell that waits for memory.
    fn before(
        &self,
        worker: WorkerId,
        at: usize,
        channels: &mut Channels<'_>,
        instrs: &mut Vec<Instr>,
    ) {
        for (token, from) in self.takes.get(&(worker, at)).into_iter().flatten() {
            if *from != worker {
                instrs.push(Instr::Recv(*token, channels.between(*from, worker, token)));
            }
            instrs.push(Instr::Take(*token));
        }
    }

    /// Adds the instructions that follow a cell that frees memory.
    fn after(
        &self,
        worker: WorkerId,
        at: usize,
        channels: &mut Channels<'_>,
        instrs: &mut Vec<Instr>,
    ) {
        for (token, to) in self.gives.get(&(worker, at)).into_iter().flatten() {
            instrs.push(Instr::Give(*token));
            if *to != worker {
                instrs.push(Instr::Send(*token, channels.between(worker, *to, token)));
            }
        }
    }
}

/// Channels, numbered in order of appearance.
struct Channels<'t> {
    placement: &'t Placement,
    all: Vec<Channel>,
    /// The route of a token, by pipe and kind, then by edge. It is looked up for each message, so
    /// it is not a map of channels.
    routes: Vec<Vec<Route>>,
    /// Number of output edges of the stages before each stage.
    first_edge: Vec<usize>,
    n_edges: usize,
    graph: &'t StageGraph,
    rules: &'t Rules,
    /// Channels of moves.
    moves: FxHashMap<Channel, ChannelId>,
}

#[derive(Clone, Copy)]
enum Route {
    Unknown,
    StaysHere,
    Travels(ChannelId),
}

impl<'t> Channels<'t> {
    fn new(placement: &'t Placement, rules: &'t Rules) -> Channels<'t> {
        let graph = rules.graph();
        let mut first_edge = Vec::new();
        let mut n_edges = 0;
        for stage in graph.stages() {
            first_edge.push(n_edges);
            n_edges += graph.outputs(stage).len();
        }
        let routes = vec![Vec::new(); 2 * placement.n_pipes()];
        let all = Vec::new();
        let moves = FxHashMap::default();
        Channels { placement, all, routes, first_edge, n_edges, graph, rules, moves }
    }

    /// The channel of moves on which `token` travels.
    fn between(&mut self, from: WorkerId, to: WorkerId, token: &Token) -> ChannelId {
        let Token { kind, pipe, stage, .. } = *token;
        let channel = Channel { from, to, pipe, edge: (stage, stage), kind };
        let all = &mut self.all;
        *self.moves.entry(channel).or_insert_with(|| {
            all.push(channel);
            ChannelId(all.len() as u32 - 1)
        })
    }

    /// The channel of saved activations that go to another worker or come from it.
    fn of_move(&mut self, token: &Token) -> Option<ChannelId> {
        if !matches!(token.kind, TokenKind::Away | TokenKind::Back) {
            return None;
        }
        let owner = self.placement.worker(token.pipe, token.stage);
        let keeper = self.rules.keeper(token.pipe, token.stage, token.span.start)?;
        Some(match token.kind {
            TokenKind::Away => self.between(owner, keeper, token),
            _ => self.between(keeper, owner, token),
        })
    }

    /// The channel of `token`, if it travels.
    fn of(&mut self, token: &Token) -> Option<ChannelId> {
        let Some((from, to)) = token.edge() else { return self.of_move(token) };
        let edge = self.graph.outputs(from).binary_search(&to).ok()?;
        let edge = self.first_edge[from.index()] + edge;
        let is_gradient = usize::from(token.kind == TokenKind::Gradient);
        let routes = &mut self.routes[2 * token.pipe.index() + is_gradient];
        if routes.is_empty() {
            routes.resize(self.n_edges, Route::Unknown); // a pipe may have no micro-batches
        }
        let route = &mut routes[edge];
        if let Route::Unknown = route {
            *route = match channel(self.placement, token) {
                None => Route::StaysHere,
                Some(channel) => {
                    self.all.push(channel);
                    Route::Travels(ChannelId(self.all.len() as u32 - 1))
                }
            };
        }
        match *route {
            Route::Travels(channel) => Some(channel),
            Route::StaysHere | Route::Unknown => None,
        }
    }
}

/// The channel of `token`, if it travels.
fn channel(placement: &Placement, token: &Token) -> Option<Channel> {
    let Token { kind, pipe, stage, to, .. } = *token;
    // A loss is on the worker of its stage.
    if stage.index() >= placement.n_stages() {
        return None;
    }
    let edge = token.edge()?;
    let (from, to) = (placement.worker(pipe, stage), placement.worker(pipe, to));
    (from != to).then_some(Channel { from, to, pipe, edge, kind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::{Event, Work, simulate};
    use crate::costs::UniformCosts;
    use crate::ir::ids::{PipeId, StageId};
    use crate::ir::op::Kind::{Backward as B, Forward as F, Recompute as R};
    use crate::ir::op::Span;
    use crate::lower::{Lowering, lower};
    use crate::program::Program;

    fn op(kind: Kind, stage: u16, unit: u32) -> Op {
        Op { kind, pipe: PipeId(0), stage: StageId(stage), span: Span::one(unit) }
    }

    fn row(stage: u16, ops: &[(Kind, u32)]) -> Vec<Cell> {
        ops.iter().map(|(kind, unit)| op(*kind, stage, *unit).into()).collect()
    }

    /// Two stages. The first recomputes on demand.
    fn lowered(first: Vec<Cell>, last: &[(Kind, u32)]) -> Result<Program, String> {
        let rows = vec![first, row(1, last)];
        let timetable = Timetable::new("own", Placement::line(2), 2, rows);
        let timetable = Timetable { on_demand: true, ..timetable };
        lower(&timetable, &Lowering::default()).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn recomputations_on_demand_may_come_in_another_order_than_their_backwards() {
        let first = [(F, 0), (F, 1), (R, 0), (R, 1), (B, 1), (B, 0)];
        let starts = |last: &[(Kind, u32)]| {
            let program = lowered(row(0, &first), last).expect("sound");
            let events = simulate(&program, &UniformCosts::new(1.0, 2.0, 0.0)).events;
            let recomputes = |event: &&Event| match event.work {
                Work::Cell(cell) => cell.ops().any(|op| op.kind == R),
                _ => false,
            };
            events.iter().filter(recomputes).map(|event| event.start).collect::<Vec<_>>()
        };
        assert_eq!(starts(&[(F, 0), (B, 0), (F, 1), (B, 1)]), [4.0, 7.0]);
        assert_eq!(starts(&[(F, 0), (F, 1), (B, 1), (B, 0)]), [7.0, 8.0]);
        // The last stage's first backward needs a forward that comes after the recomputation.
        let late = [(F, 0), (R, 0), (F, 1), (R, 1), (B, 0), (B, 1)];
        let refused = lowered(row(0, &late), &[(F, 0), (F, 1), (B, 1), (B, 0)]);
        assert!(refused.is_err_and(|refusal| refusal.contains("deadlock")));
    }

    #[test]
    fn a_recomputation_on_demand_in_a_pair_waits_for_its_gradient() {
        let mut first = row(0, &[(F, 0)]);
        first.push(Cell::Pair(op(R, 0, 0), op(F, 0, 1)));
        first.extend(row(0, &[(B, 0), (R, 1), (B, 1)]));
        let program = lowered(first, &[(F, 0), (B, 0), (F, 1), (B, 1)]).expect("sound");
        let row = &program.rows()[0];
        let received = row.iter().position(|instr| matches!(instr, Instr::Recv(..)));
        let pair = row.iter().position(|instr| matches!(instr, Instr::Run(Cell::Pair(..))));
        assert!(received < pair, "{row:?}");
    }
}
