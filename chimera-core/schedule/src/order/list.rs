//! List scheduling: every worker, whenever it is free, runs the most urgent of the cells that may
//! run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::graph::{Edge, Graph, Node};
use super::objective::OrderObjective;
use crate::activation_memory::ROUNDING;
use crate::ir::op::Cell;

/// The memory limits of orders.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// The most micro-batches with activations that a worker may hold.
    pub worker: Option<f64>,
    /// The most micro-batches of one pipe with activations that a worker may hold.
    pub pipe: Option<f64>,
}

/// An order of all cells with its times.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// The nodes of each worker, in order.
    pub(crate) rows: Vec<Vec<u32>>,
    /// The start of each node.
    pub(crate) starts: Vec<f64>,
    /// The time from 0 to the last end.
    pub(crate) makespan: f64,
}

impl Order {
    /// The cells of each worker, in order.
    pub(crate) fn cells(&self, graph: &Graph) -> Vec<Vec<Cell>> {
        let cell = |id: &u32| graph.nodes[*id as usize].cell;
        self.rows.iter().map(|row| row.iter().map(cell).collect()).collect()
    }

    /// The objective that the order reaches.
    pub(crate) fn objective(&self, graph: &Graph) -> OrderObjective {
        let most = |changes: fn(&Node) -> (f64, f64)| {
            let peak = |row: &Vec<u32>| {
                let mut held = 0.0f64;
                let mut most = 0.0f64;
                for id in row {
                    let (more, less) = changes(&graph.nodes[*id as usize]);
                    most = most.max(held + more);
                    held += more - less;
                }
                most
            };
            self.rows.iter().map(peak).fold(0.0, f64::max)
        };
        OrderObjective {
            makespan: self.makespan,
            peak: most(|node| (node.adds, node.frees)),
            kept: most(|node| (node.keeps, node.drops)),
        }
    }

    /// The longest time from the start of a worker's first cell to the end of its last.
    pub(crate) fn longest_span(&self, graph: &Graph) -> f64 {
        let start = |id: &u32| self.starts[*id as usize];
        let span = |row: &Vec<u32>| match (row.first(), row.last()) {
            (Some(first), Some(last)) => {
                start(last) + graph.nodes[*last as usize].takes - start(first)
            }
            _ => 0.0,
        };
        self.rows.iter().map(span).fold(0.0, f64::max)
    }

    /// Moves every cell of an order to its earliest time. `placed` has all cells in an order in
    /// which none waits for a later one.
    fn hastened(mut self, graph: &Graph, placed: &[u32]) -> Order {
        let mut free = vec![0.0f64; graph.n_workers];
        self.makespan = 0.0;
        for &id in placed {
            let node = &graph.nodes[id as usize];
            let free = &mut free[usize::from(node.worker)];
            let end = |pred: &Edge| {
                let before = pred.node as usize;
                self.starts[before] + graph.nodes[before].takes + pred.lag
            };
            let start = graph.preds(id as usize).iter().map(end).fold(*free, f64::max);
            *free = start + node.takes;
            self.makespan = self.makespan.max(*free);
            self.starts[id as usize] = start;
        }
        self
    }
}

/// The urgency of cells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    /// Urgency by node; the lowest is the most urgent.
    pub(crate) urgency: Vec<f64>,
    /// Earliest start by node; empty for none.
    pub(crate) releases: Vec<f64>,
    /// The time that a worker waits for a more urgent cell that is almost ready.
    pub(crate) patience: f64,
}

/// The order in which each free worker runs the most urgent cell that may run.
///
/// `None` if the limits leave no worker anything to run. This only happens if they are too tight
/// for one micro-batch: every worker keeps room for its micro-batches to finish one after another,
/// so the first unfinished one can continue.
pub(crate) fn list(graph: &Graph, keys: &Keys, limits: &Limits) -> Option<Order> {
    let mut state = ListSchedule::new(graph, keys, limits);
    let mut placed = Vec::with_capacity(graph.nodes.len());
    for _ in 0..graph.nodes.len() {
        placed.push(state.run_next()?);
    }
    let ListSchedule { rows, starts, makespan, .. } = state;
    let order = Order { rows, starts, makespan };
    Some(if keys.releases.is_empty() { order } else { order.hastened(graph, &placed) })
}

struct ListSchedule<'g> {
    graph: &'g Graph,
    keys: &'g Keys,
    limits: &'g Limits,
    n_open: Vec<u32>,
    /// The time at which each node is ready, once everything it waits for has been placed.
    ready: Vec<f64>,
    starts: Vec<f64>,
    rows: Vec<Vec<u32>>,
    free: Vec<f64>,
    /// The nodes of each worker whose dependences are all placed. At most one op of each kind and
    /// stage.
    candidates: Vec<Vec<u32>>,
    /// The candidates of one worker that fit into memory, with their starts.
    able: Vec<(f64, u32)>,
    /// For each worker, the time at which it can continue, and the node.
    next: Vec<(f64, u32)>,
    /// All workers by the time at which they can continue, including outdated entries.
    queue: BinaryHeap<Reverse<(Time, usize)>>,
    room: Vec<SavedActivations>,
    makespan: f64,
}

/// Saved activations of one worker.
#[derive(Clone, Debug)]
pub(super) struct SavedActivations {
    held: f64,
    by_pipe: Vec<f64>,
    /// The shares of the micro-batches for which it has cells, ascending.
    shares: Vec<Share>,
    /// The first micro-batch with remaining cells.
    first: usize,
}

/// The share of one micro-batch in a worker's memory.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    micro: u32,
    pipe: u16,
    /// Cells of the micro-batch that have not run on this worker.
    n_left: u32,
    /// Saved activations that the remaining cells will add.
    wants: f64,
    holds: f64,
}

impl SavedActivations {
    /// The saved activations of each worker before its first cell.
    pub(super) fn of(graph: &Graph) -> Vec<SavedActivations> {
        let pipes =
            graph.nodes.iter().map(|node| usize::from(node.added.pipe.max(node.freed.pipe)));
        let room = SavedActivations {
            held: 0.0,
            by_pipe: vec![0.0; pipes.max().map_or(0, |last| last + 1)],
            shares: Vec::new(),
            first: 0,
        };
        let mut room = vec![room; graph.n_workers];
        let owners = |node: &Node| [node.added.micro, node.freed.micro];
        let mut micros: Vec<_> =
            graph.nodes.iter().flat_map(|n| owners(n).map(|micro| (n.worker, micro))).collect();
        micros.sort_unstable();
        micros.dedup();
        for (worker, micro) in micros {
            room[usize::from(worker)].shares.push(Share { micro, ..Share::default() });
        }
        for node in &graph.nodes {
            let share = room[usize::from(node.worker)].share(node.added.micro);
            share.pipe = node.added.pipe;
            share.n_left += 1;
            share.wants += node.adds;
        }
        room
    }

    fn share(&mut self, micro: u32) -> &mut Share {
        let at = self.shares.partition_point(|share| share.micro < micro);
        &mut self.shares[at]
    }

    pub(super) fn run(&mut self, node: &Node) {
        let Node { added, freed, .. } = *node;
        self.held += node.adds - node.frees;
        self.by_pipe[usize::from(added.pipe)] += node.adds;
        self.by_pipe[usize::from(freed.pipe)] -= node.frees;
        let share = self.share(added.micro);
        share.n_left -= 1;
        share.wants -= node.adds;
        share.holds += node.adds;
        self.share(freed.micro).holds -= node.frees;
        while self.shares.get(self.first).is_some_and(|share| share.n_left == 0) {
            self.first += 1;
        }
    }

    /// Returns true if the saved activations that `node` adds leave enough room for every
    /// micro-batch, one after another, to run to its end and free what it holds (Dijkstra's
    /// banker).
    pub(super) fn has_for(&self, node: &Node, limits: &Limits) -> bool {
        let leaves = |most: Option<f64>, held: f64, pipe: Option<u16>| {
            let Some(most) = most else { return true };
            let mut free = most - held - node.adds + ROUNDING;
            if free < 0.0 {
                return false;
            }
            for share in &self.shares[self.first..] {
                // Later micro-batches need no more than a whole micro-batch.
                if free >= 1.0 {
                    break;
                }
                if pipe.is_some_and(|pipe| share.pipe != pipe) {
                    continue;
                }
                let adds = if share.micro == node.added.micro { node.adds } else { 0.0 };
                if share.wants - adds > free {
                    return false;
                }
                free += share.holds + adds;
            }
            true
        };
        let pipe = node.added.pipe;
        node.adds <= 0.0
            || leaves(limits.worker, self.held, None)
                && leaves(limits.pipe, self.by_pipe[usize::from(pipe)], Some(pipe))
    }
}

/// A time that is not NaN and not negative, as bits, which have the same order.
type Time = u64;

const NONE: (f64, u32) = (f64::INFINITY, u32::MAX);

impl<'g> ListSchedule<'g> {
    fn new(graph: &'g Graph, keys: &'g Keys, limits: &'g Limits) -> ListSchedule<'g> {
        let (n, d) = (graph.nodes.len(), graph.n_workers);
        let mut state = ListSchedule {
            graph,
            keys,
            limits,
            n_open: (0..n).map(|i| graph.preds(i).len() as u32).collect(),
            ready: if keys.releases.is_empty() { vec![0.0; n] } else { keys.releases.clone() },
            starts: vec![0.0; n],
            rows: vec![Vec::with_capacity(n / d.max(1) + 1); d],
            free: vec![0.0; d],
            candidates: vec![Vec::new(); d],
            able: Vec::new(),
            next: vec![NONE; d],
            queue: BinaryHeap::with_capacity(4 * d),
            room: SavedActivations::of(graph),
            makespan: 0.0,
        };
        for (i, node) in graph.nodes.iter().enumerate() {
            if state.n_open[i] == 0 {
                state.candidates[usize::from(node.worker)].push(i as u32);
            }
        }
        (0..d).for_each(|w| state.choose(w));
        state
    }

    /// Runs the next cell of the worker that can continue first, and returns it.
    fn run_next(&mut self) -> Option<u32> {
        let w = loop {
            let Reverse((time, w)) = self.queue.pop()?;
            if self.next[w].0.to_bits() == time {
                break w;
            }
        };
        let (start, chosen) = std::mem::replace(&mut self.next[w], NONE);
        let node = &self.graph.nodes[chosen as usize];
        let end = start + node.takes;
        self.starts[chosen as usize] = start;
        self.free[w] = end;
        self.makespan = self.makespan.max(end);
        self.rows[w].push(chosen);
        self.candidates[w].retain(|c| *c != chosen);
        self.room[w].run(node);
        for edge in self.graph.succs(chosen as usize) {
            let next = edge.node as usize;
            self.ready[next] = self.ready[next].max(end + edge.lag);
            self.n_open[next] -= 1;
            if self.n_open[next] == 0 {
                let owner = usize::from(self.graph.nodes[next].worker);
                self.candidates[owner].push(edge.node);
                if owner != w {
                    self.choose(owner);
                }
            }
        }
        self.choose(w);
        Some(chosen)
    }

    /// Finds the node that a worker runs next, as far as is known.
    fn choose(&mut self, w: usize) {
        let ListSchedule { graph, keys, limits, room, ready, free, able, .. } = self;
        able.clear();
        let mut first = f64::INFINITY;
        for &candidate in &self.candidates[w] {
            if room[w].has_for(&graph.nodes[candidate as usize], limits) {
                let start = ready[candidate as usize].max(free[w]);
                first = first.min(start);
                able.push((start, candidate));
            }
        }
        // Sums of times are rounded like those of shares.
        let limit = first + keys.patience + ROUNDING * graph.unit;
        let soon = able.iter().filter(|(start, _)| *start <= limit);
        let best = soon.min_by(|(_, a), (_, b)| {
            let key = |c: u32| keys.urgency[c as usize];
            key(*a).total_cmp(&key(*b)).then(a.cmp(b))
        });
        let next = best.copied().unwrap_or(NONE);
        let is_queued = next.0 == self.next[w].0;
        self.next[w] = next;
        if best.is_some() && !is_queued {
            self.queue.push(Reverse((next.0.to_bits(), w)));
        }
    }
}
