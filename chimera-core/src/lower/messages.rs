//! The pass that adds messages: a token that is eaten on another worker than it was made on is sent
//! right after it is made and received right before it is eaten.

use crate::effects::{Effects, Rules, Token, TokenKind};
use crate::graph::StageGraph;
use crate::ids::ChannelId;
use crate::op::{Cell, Kind};
use crate::placement::Placement;
use crate::program::{Channel, Instr};
use crate::timetable::Timetable;

/// The rows of `timetable` with sends and receives, and the channels they use, in order of first use.
///
/// Recomputations on demand run after the receives of the cell that they precede.
pub(super) fn insert(timetable: &Timetable, rules: &Rules) -> (Vec<Vec<Instr>>, Vec<Channel>) {
    let mut channels = Channels::new(&timetable.placement, rules.graph());
    let mut effects = Effects::default();
    let mut lower_row = |row: &Vec<Cell>| {
        let mut instrs = Vec::with_capacity(row.len() * 3);
        let mut waiting = Vec::new();
        for cell in row {
            let recomputes = matches!(cell, Cell::One(op) if op.kind == Kind::Recompute);
            if timetable.on_demand && recomputes {
                waiting.push(Instr::Run(*cell));
                continue;
            }
            rules.set_cell_effects(cell, &mut effects);
            let mut message = |token: &Token| Some((*token, channels.of(token)?));
            instrs.extend(
                effects.eats.iter().filter_map(&mut message).map(|(t, c)| Instr::Recv(t, c)),
            );
            instrs.append(&mut waiting);
            instrs.push(Instr::Run(*cell));
            instrs.extend(effects.makes.iter().filter_map(message).map(|(t, c)| Instr::Send(t, c)));
        }
        instrs.extend(waiting);
        instrs
    };
    let rows = timetable.rows.iter().map(&mut lower_row).collect();
    (rows, channels.all)
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
}

#[derive(Clone, Copy)]
enum Route {
    Unknown,
    StaysHere,
    Travels(ChannelId),
}

impl<'t> Channels<'t> {
    fn new(placement: &'t Placement, graph: &'t StageGraph) -> Channels<'t> {
        let (mut first_edge, mut n_edges) = (Vec::new(), 0);
        for stage in graph.stages() {
            first_edge.push(n_edges);
            n_edges += graph.outputs(stage).len();
        }
        let routes = vec![Vec::new(); 2 * placement.n_pipes()];
        Channels { placement, all: Vec::new(), routes, first_edge, n_edges, graph }
    }

    /// The channel on which `token` travels, if it travels.
    fn of(&mut self, token: &Token) -> Option<ChannelId> {
        let (from, to) = token.edge()?;
        let edge = self.graph.outputs(from).iter().position(|end| *end == to)?;
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
