//! The graph of a timetable: its cells and their dependences, without their order.

use rustc_hash::FxHashMap;

use crate::activation_memory::ActivationMemory;
use crate::costs::{Costs, of_cell};
use crate::effects::{Rules, Token};
use crate::ir::ids::{PipeId, StageId, WorkerId};
use crate::ir::op::{Cell, Kind, Op};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;

/// Every op of a step, in no useful order: micro-batches alternate between the pipes, and each row
/// has its ops stage by stage.
pub(crate) fn unordered(placement: Placement, n_micro_batches: u32, splits: bool) -> Timetable {
    let kinds: &[Kind] = if splits {
        &[Kind::Forward, Kind::BackwardInput, Kind::BackwardWeight]
    } else {
        &[Kind::Forward, Kind::Backward]
    };
    let mut rows = vec![Vec::new(); placement.n_workers()];
    for (p, pipe) in placement.pipes().iter().enumerate() {
        for (s, worker) in pipe.iter().enumerate() {
            for kind in kinds {
                for micro in (p as u32..n_micro_batches).step_by(placement.n_pipes()) {
                    let op = Op::new(*kind, PipeId(p as u16), StageId(s as u16), micro);
                    rows[worker.index()].push(Cell::One(op));
                }
            }
        }
    }
    Timetable::new("", placement, n_micro_batches, rows)
}

/// The kind that stands for all kinds with the same messages: if they overtook each other, the
/// messages would be received in another order than they were sent.
pub(super) fn lane(kind: Kind) -> Kind {
    if kind == Kind::Backward { Kind::BackwardInput } else { kind }
}

/// The dependences and the time of one cell.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) cell: Cell,
    pub(crate) worker: u16,
    /// Duration of the cell.
    pub(crate) takes: f64,
    /// Saved activations that it adds while it runs, in micro-batches, and the amount that it frees
    /// at its end.
    pub(crate) adds: f64,
    pub(crate) frees: f64,
    /// Checkpointed inputs that it adds, in micro-batches, and the amount that it drops at its end.
    pub(crate) keeps: f64,
    pub(crate) drops: f64,
    /// The owners of the saved activations that it adds and frees. The ops of a pair belong to two
    /// micro-batches.
    pub(crate) added: Owner,
    pub(crate) freed: Owner,
}

/// A micro-batch and its pipe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) micro: u32,
    pub(crate) pipe: u16,
}

/// An edge: the other end, and the lag between the end of the first and the start of the second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) node: u32,
    pub(crate) lag: f64,
}

/// All cells of a timetable as a graph.
///
/// Besides the dependences by tokens, the ops of one kind, pipe and stage (whole and input-half
/// backwards count as one kind) keep their order in the timetable: with equal micro-batches nothing
/// is gained by overtaking.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub(crate) n_workers: usize,
    pub(crate) n_micro_batches: usize,
    /// The mean time of a cell. Other times are multiples of it, so that the unit of the costs does
    /// not matter.
    pub(crate) unit: f64,
    pub(crate) nodes: Vec<Node>,
    preds: Lists,
    succs: Lists,
}

/// An edge from its first node.
fn forth(&(from, to, lag): &(u32, u32, f64)) -> (u32, Edge) {
    (from, Edge { node: to, lag })
}

/// An edge from its second node.
fn back(&(from, to, lag): &(u32, u32, f64)) -> (u32, Edge) {
    (to, Edge { node: from, lag })
}

/// Lists of edges, one per node, in one allocation.
#[derive(Clone, Debug)]
struct Lists {
    starts: Vec<u32>,
    edges: Vec<Edge>,
}

impl Lists {
    fn of(n: usize, pairs: impl ExactSizeIterator<Item = (u32, Edge)> + Clone) -> Lists {
        let mut starts = vec![0; n + 1];
        for (from, _) in pairs.clone() {
            starts[from as usize + 1] += 1;
        }
        for i in 0..n {
            starts[i + 1] += starts[i];
        }
        let mut next = starts.clone();
        let mut edges = vec![Edge { node: 0, lag: 0.0 }; pairs.len()];
        for (from, edge) in pairs {
            let place = &mut next[from as usize];
            edges[*place as usize] = edge;
            *place += 1;
        }
        Lists { starts, edges }
    }

    fn get(&self, node: usize) -> &[Edge] {
        &self.edges[self.starts[node] as usize..self.starts[node + 1] as usize]
    }
}

impl Graph {
    /// The graph of a timetable with cells at `costs`.
    pub(crate) fn of(timetable: &Timetable, costs: &impl Costs) -> Graph {
        let rules = Rules::of(timetable);
        let activations = ActivationMemory::new(&timetable.placement, timetable.units_per_micro);
        let mut nodes = Vec::with_capacity(timetable.n_ops());
        let mut makers: FxHashMap<Token, u32> = FxHashMap::default();
        let mut lanes: FxHashMap<(Kind, PipeId, StageId), u32> = FxHashMap::default();
        let mut pairs = Vec::new();
        for (w, row) in timetable.rows.iter().enumerate() {
            for cell in row {
                let id = nodes.len() as u32;
                let worker = WorkerId(w as u16);
                let takes = of_cell(costs, worker, cell);
                let (adds, frees) = activations.change(worker, cell, &rules);
                let (keeps, drops) = activations.kept_change(worker, cell, &rules);
                let (added, freed) = owners(cell, timetable.units_per_micro.max(1));
                for op in cell.ops() {
                    if let Some(before) = lanes.insert((lane(op.kind), op.pipe, op.stage), id) {
                        pairs.push((before, id, 0.0));
                    }
                }
                for token in rules.cell_effects(cell).makes {
                    makers.insert(token, id);
                }
                nodes.push(Node {
                    cell: *cell,
                    worker: w as u16,
                    takes,
                    adds,
                    frees,
                    keeps,
                    drops,
                    added,
                    freed,
                });
            }
        }
        for (id, node) in nodes.iter().enumerate() {
            for token in rules.cell_effects(&node.cell).eats {
                if let Some(&maker) = makers.get(&token) {
                    let is_sent = nodes[maker as usize].worker != node.worker;
                    pairs.push((
                        maker,
                        id as u32,
                        if is_sent { costs.message(&token) } else { 0.0 },
                    ));
                }
            }
        }
        let total: f64 = nodes.iter().map(|node| node.takes).sum();
        Graph {
            n_workers: timetable.rows.len(),
            unit: total / nodes.len().max(1) as f64,
            n_micro_batches: timetable.n_micro_batches as usize,
            preds: Lists::of(nodes.len(), pairs.iter().map(back)),
            succs: Lists::of(nodes.len(), pairs.iter().map(forth)),
            nodes,
        }
    }

    /// Adds edges to the graph: the second node of each waits for the first.
    pub(crate) fn with(&self, more: &[(u32, u32)]) -> Graph {
        let edges = |from: usize| {
            self.succs(from).iter().map(move |edge| (from as u32, edge.node, edge.lag))
        };
        let more = more.iter().map(|&(from, to)| (from, to, 0.0));
        let pairs: Vec<_> = (0..self.nodes.len()).flat_map(edges).chain(more).collect();
        Graph {
            preds: Lists::of(self.nodes.len(), pairs.iter().map(back)),
            succs: Lists::of(self.nodes.len(), pairs.iter().map(forth)),
            nodes: self.nodes.clone(),
            ..*self
        }
    }

    /// The nodes that `node` waits for.
    pub(crate) fn preds(&self, node: usize) -> &[Edge] {
        self.preds.get(node)
    }

    /// The nodes that wait for `node`.
    pub(crate) fn succs(&self, node: usize) -> &[Edge] {
        self.succs.get(node)
    }

    /// Reverses the graph, as if time ran backwards.
    pub(crate) fn reversed(&self) -> Graph {
        let mut nodes = self.nodes.clone();
        for node in &mut nodes {
            std::mem::swap(&mut node.adds, &mut node.frees);
            std::mem::swap(&mut node.keeps, &mut node.drops);
            std::mem::swap(&mut node.added, &mut node.freed);
            for owner in [&mut node.added, &mut node.freed] {
                owner.micro = self.n_micro_batches as u32 - 1 - owner.micro;
            }
        }
        Graph { nodes, preds: self.succs.clone(), succs: self.preds.clone(), ..*self }
    }

    /// The nodes, each after all that it waits for.
    pub(crate) fn sequence(&self) -> Vec<u32> {
        let n = self.nodes.len();
        let mut n_open: Vec<usize> = (0..n).map(|i| self.preds(i).len()).collect();
        let mut sequence: Vec<u32> = (0..n as u32).filter(|&i| n_open[i as usize] == 0).collect();
        let mut done = 0;
        while let Some(&id) = sequence.get(done) {
            done += 1;
            for edge in self.succs(id as usize) {
                n_open[edge.node as usize] -= 1;
                if n_open[edge.node as usize] == 0 {
                    sequence.push(edge.node);
                }
            }
        }
        sequence
    }

    /// For each node, the longest path from the start of the step to its start.
    pub(crate) fn heads(&self) -> Vec<f64> {
        let mut heads = vec![0.0f64; self.nodes.len()];
        for id in self.sequence() {
            let end = heads[id as usize] + self.nodes[id as usize].takes;
            for edge in self.succs(id as usize) {
                let head = &mut heads[edge.node as usize];
                *head = head.max(end + edge.lag);
            }
        }
        heads
    }
}

/// The time of a timetable whose rows run in their order, if that order is sound.
pub(crate) fn makespan(timetable: &Timetable, costs: &impl Costs) -> f64 {
    let graph = Graph::of(timetable, costs);
    let neighbours = (1..).zip(graph.nodes.windows(2));
    let is_row = |(_, pair): &(u32, &[Node])| pair[0].worker == pair[1].worker;
    let rows: Vec<_> = neighbours.filter(is_row).map(|(to, _)| (to - 1, to)).collect();
    let heads = graph.with(&rows).heads();
    heads.iter().zip(&graph.nodes).map(|(head, node)| head + node.takes).fold(0.0, f64::max)
}

/// The owners of the saved activations that a cell adds and frees. If a pair does only one of
/// these, its owner is that of the first op, or of the forward.
fn owners(cell: &Cell, units_per_micro: u32) -> (Owner, Owner) {
    let owner = |op: &Op| Owner { micro: op.span.start / units_per_micro, pipe: op.pipe.0 };
    match cell {
        Cell::One(op) => (owner(op), owner(op)),
        Cell::Pair(a, b) if b.kind == Kind::Forward => (owner(b), owner(a)),
        Cell::Pair(a, b) => (owner(a), owner(b)),
    }
}
