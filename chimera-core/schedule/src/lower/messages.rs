//! The pass that adds messages: a token that is eaten on another worker than it was made on is sent
//! right after it is made and received right before it is eaten. So is memory, where an op waits for what another lane
//! frees.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use super::memory::{MemoryWaits, waits};
use crate::effects::{Effects, Rules, Token, TokenKind};
use crate::graph::StageGraph;
use crate::ids::{ChannelId, WorkerId};
use crate::op::{Cell, Kind, Op};
use crate::placement::Placement;
use crate::program::{Channel, Instr};
use crate::timetable::Timetable;

/// The rows of `timetable` with sends and receives, and the channels they use, in order of first use.
///
/// A recomputation on demand runs after the receives of its own backward, and of what its channels carry before them.
pub(super) fn insert(timetable: &Timetable, rules: &Rules) -> (Vec<Vec<Instr>>, Vec<Channel>) {
    let mut channels = Channels::new(&timetable.placement, rules);
    let mut effects = Effects::default();
    let memory = waits(timetable, rules);
    let mut lower_row = |(worker, row): (WorkerId, &Vec<Cell>)| {
        let mut instrs = Vec::with_capacity(row.len() * 3);
        let mut early = timetable.on_demand.then(|| EarlyReceives::of(row, rules, &mut channels));
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

/// What a row receives for recomputations on demand, before the cells that eat it.
struct EarlyReceives {
    /// By recomputation: the gradients that its backward receives.
    gradients: FxHashMap<Op, Vec<(Token, ChannelId)>>,
    /// By channel: what the row has not received yet, in order.
    left: FxHashMap<ChannelId, VecDeque<Token>>,
}

impl EarlyReceives {
    fn of(row: &[Cell], rules: &Rules, channels: &mut Channels<'_>) -> EarlyReceives {
        let (mut gradients, mut left) = (FxHashMap::default(), FxHashMap::default());
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
                left.entry(channel).or_insert_with(VecDeque::new).push_back(token);
                for recompute in made_by.iter().filter(|_| token.kind == TokenKind::Gradient) {
                    let of_it: &mut Vec<_> = gradients.entry(*recompute).or_default();
                    of_it.push((token, channel));
                }
            }
        }
        EarlyReceives { gradients, left }
    }

    /// Adds what is received before a cell because it is a recomputation. A channel keeps its order: what it carries before
    /// comes before.
    fn before(&mut self, cell: &Cell, instrs: &mut Vec<Instr>) {
        let Cell::One(op) = cell else { return };
        for (gradient, channel) in self.gradients.remove(op).into_iter().flatten() {
            let Some(left) = self.left.get_mut(&channel) else { continue };
            let n_received =
                left.iter().position(|token| *token == gradient).map_or(0, |at| at + 1);
            instrs.extend(left.drain(..n_received).map(|token| Instr::Recv(token, channel)));
        }
    }

    /// Whether `token` is still to be received; by now it is.
    fn is_left(&mut self, token: &Token, channel: ChannelId) -> bool {
        let left = self.left.get_mut(&channel);
        left.is_some_and(|left| {
            let at = left.iter().position(|other| other == token);
            at.and_then(|at| left.remove(at)).is_some()
        })
    }
}

impl MemoryWaits {
    /// Adds what stands before a cell that waits for memory.
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

    /// Adds what stands behind a cell that frees memory.
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

/// Channels, numbered as they come.
struct Channels<'t> {
    placement: &'t Placement,
    all: Vec<Channel>,
    /// By pipe and kind, then by edge: where tokens go. Looked up for each message, and so no map of channels.
    routes: Vec<Vec<Route>>,
    /// By stage: how many output edges the stages before it have.
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
        let (mut first_edge, mut n_edges) = (Vec::new(), 0);
        for stage in graph.stages() {
            first_edge.push(n_edges);
            n_edges += graph.outputs(stage).len();
        }
        let routes = vec![Vec::new(); 2 * placement.n_pipes()];
        let (all, moves) = (Vec::new(), FxHashMap::default());
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

    /// The channel on which `token` travels, if it travels.
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

/// The channel on which `token` travels, if it travels.
fn channel(placement: &Placement, token: &Token) -> Option<Channel> {
    let Token { kind, pipe, stage, to, .. } = *token;
    // A loss is on the worker of its stage.
    let edge = token.edge().filter(|_| stage.index() < placement.n_stages())?;
    let (from, to) = (placement.worker(pipe, stage), placement.worker(pipe, to));
    (from != to).then_some(Channel { from, to, pipe, edge, kind })
}
