//! List scheduling: every worker, whenever it is free, runs the most urgent of the cells that may run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::graph::{Edge, Graph};
use crate::op::Cell;

/// What orders must keep to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limits {
    /// The most micro-batches whose residuals a worker may hold.
    pub(crate) worker: Option<f64>,
    /// The most micro-batches of one pipe whose residuals a worker may hold.
    pub(crate) pipe: Option<f64>,
}

/// An order of all cells with its times.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// By worker: its nodes in order.
    pub(crate) rows: Vec<Vec<u32>>,
    /// By node: when it starts.
    pub(crate) starts: Vec<f64>,
    /// From 0 to the last end.
    pub(crate) makespan: f64,
}

impl Order {
    /// The cells of each worker, in order.
    pub(crate) fn cells(&self, graph: &Graph) -> Vec<Vec<Cell>> {
        let cell = |id: &u32| graph.nodes[*id as usize].cell;
        self.rows.iter().map(|row| row.iter().map(cell).collect()).collect()
    }

    /// The same order with every cell as early as it can be. `placed` has all cells in an order in which
    /// none waits for a later one.
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

/// How urgent cells are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    /// By node: the least is the most urgent.
    pub(crate) urgency: Vec<f64>,
    /// By node: the earliest start; empty for none.
    pub(crate) releases: Vec<f64>,
    /// A worker waits so long for a more urgent cell that is about to be ready.
    pub(crate) patience: f64,
}

/// The order in which each worker, whenever it is free, runs the most urgent of the cells that may run
/// then.
///
/// `None` if the limits leave no worker anything to run. They do so only where they are too tight for
/// one micro-batch: room is always kept for what the first unfinished micro-batch of a worker still
/// needs there, so the first unfinished one of all can go on.
pub(crate) fn list(graph: &Graph, keys: &Keys, limits: &Limits) -> Option<Order> {
    let mut state = State::new(graph, keys, limits);
    let mut placed = Vec::with_capacity(graph.nodes.len());
    for _ in 0..graph.nodes.len() {
        placed.push(state.run_next()?);
    }
    let State { rows, starts, makespan, .. } = state;
    let order = Order { rows, starts, makespan };
    Some(if keys.releases.is_empty() { order } else { order.hastened(graph, &placed) })
}

const ROUNDING: f64 = 1e-6;

struct State<'g> {
    graph: &'g Graph,
    keys: &'g Keys,
    limits: &'g Limits,
    n_open: Vec<u32>,
    /// By node, once all it waits for has been placed.
    ready: Vec<f64>,
    starts: Vec<f64>,
    rows: Vec<Vec<u32>>,
    free: Vec<f64>,
    candidates: Vec<Vec<u32>>,
    /// By worker: when it can go on, and with what.
    next: Vec<(f64, u32)>,
    /// All workers by when they can go on, and what has become out of date meanwhile.
    queue: BinaryHeap<Reverse<(Time, usize)>>,
    room: Vec<Room>,
    makespan: f64,
}

/// Residuals of one worker.
#[derive(Clone)]
struct Room {
    held: f64,
    by_pipe: Vec<f64>,
    /// By micro-batch: cells that it has not run here, and residuals they will add.
    left: Vec<(u32, f64)>,
    /// The first micro-batch that has cells left.
    first: usize,
}

/// A time that is not NaN and not negative, of which the bits are in its order.
type Time = u64;

const NONE: (f64, u32) = (f64::INFINITY, u32::MAX);

impl<'g> State<'g> {
    fn new(graph: &'g Graph, keys: &'g Keys, limits: &'g Limits) -> State<'g> {
        let (n, d) = (graph.nodes.len(), graph.n_workers);
        let n_pipes = graph.nodes.iter().map(|node| usize::from(node.pipe) + 1).max().unwrap_or(0);
        let room = Room {
            held: 0.0,
            by_pipe: vec![0.0; n_pipes],
            left: vec![(0, 0.0); graph.n_micro_batches],
            first: 0,
        };
        let mut room = vec![room; d];
        for node in &graph.nodes {
            let left = &mut room[usize::from(node.worker)].left[node.micro as usize];
            *left = (left.0 + 1, left.1 + node.adds);
        }
        let mut state = State {
            graph,
            keys,
            limits,
            n_open: (0..n).map(|i| graph.preds(i).len() as u32).collect(),
            ready: if keys.releases.is_empty() { vec![0.0; n] } else { keys.releases.clone() },
            starts: vec![0.0; n],
            rows: vec![Vec::with_capacity(n / d.max(1) + 1); d],
            free: vec![0.0; d],
            candidates: vec![Vec::new(); d],
            next: vec![NONE; d],
            queue: BinaryHeap::with_capacity(4 * d),
            room,
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

    /// Runs the next cell of the worker that can go on first, and returns it.
    fn run_next(&mut self) -> Option<u32> {
        let w = loop {
            let Reverse((time, w)) = self.queue.pop()?;
            if self.next[w].0.to_bits() == time {
                break w;
            }
        };
        let (start, chosen) = self.next[w];
        let node = &self.graph.nodes[chosen as usize];
        let end = start + node.takes;
        self.starts[chosen as usize] = start;
        self.free[w] = end;
        self.makespan = self.makespan.max(end);
        self.rows[w].push(chosen);
        self.candidates[w].retain(|c| *c != chosen);
        let room = &mut self.room[w];
        room.held += node.adds - node.frees;
        room.by_pipe[usize::from(node.pipe)] += node.adds - node.frees;
        let left = &mut room.left[node.micro as usize];
        *left = (left.0 - 1, left.1 - node.adds);
        while room.left.get(room.first).is_some_and(|left| left.0 == 0) {
            room.first += 1;
        }
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

    /// Finds what a worker runs next, as far as is known.
    fn choose(&mut self, w: usize) {
        let free = self.free[w];
        let may_run = |c: &&u32| self.has_room(w, **c as usize);
        let start = |c: u32| self.ready[c as usize].max(free);
        let candidates = || self.candidates[w].iter().filter(may_run).copied();
        let first = candidates().map(start).fold(f64::INFINITY, f64::min);
        let limit = first + self.keys.patience + ROUNDING;
        let soon = candidates().filter(|c| start(*c) <= limit);
        let best = soon.min_by(|a, b| {
            let key = |c: u32| self.keys.urgency[c as usize];
            key(*a).total_cmp(&key(*b)).then(a.cmp(b))
        });
        self.next[w] = best.map_or(NONE, |c| (start(c), c));
        if best.is_some() {
            self.queue.push(Reverse((self.next[w].0.to_bits(), w)));
        }
    }

    fn has_room(&self, w: usize, candidate: usize) -> bool {
        let node = &self.graph.nodes[candidate];
        if node.adds <= 0.0 {
            return true;
        }
        let room = &self.room[w];
        let fits = |held: f64, limit: Option<f64>, kept: f64| {
            limit.is_none_or(|most| held + node.adds + kept <= most + ROUNDING)
        };
        let is_first = room.first == node.micro as usize;
        let kept = if is_first { 0.0 } else { room.left.get(room.first).map_or(0.0, |l| l.1) };
        fits(room.held, self.limits.worker, kept)
            && fits(room.by_pipe[usize::from(node.pipe)], self.limits.pipe, 0.0)
    }
}
