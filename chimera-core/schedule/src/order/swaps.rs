//! Improvement of an order by swaps of neighbours on its critical path: a tabu search (Nowicki and
//! Smutnicki, Management Science 1996).

use std::collections::VecDeque;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::graph::{Edge, Graph};
use super::list::{Limits, Order};
use crate::activation_memory::ROUNDING;
use crate::costs::is_shorter;

/// The share of attempts that swap cells on the critical path, and their number in a row.
pub(crate) const SWAP_SHARE: f64 = 0.1;
pub(crate) const N_SWAPS: usize = 60;
/// Swaps that take as long as an order.
pub(crate) const SWAPS_PER_ORDER: u64 = 2;

/// The shortest order that `n_swaps` swaps in a row lead to, each the one of least estimated
/// makespan that is not the return of a recent one. Keeps to the workers' limit.
pub(crate) fn swapped(
    graph: &Graph,
    order: &Order,
    limits: &Limits,
    n_swaps: usize,
    rng: &mut ChaCha8Rng,
    is_late: &impl Fn() -> bool,
) -> Order {
    let mut state = Rows::of(graph, order.rows.clone());
    let mut best = order.clone();
    if !state.update() {
        return best;
    }
    let mut recent = VecDeque::new();
    for _ in 0..n_swaps {
        if is_late() {
            break;
        }
        let Some(swap) = state.best_swap(limits, &recent, best.makespan, rng) else { break };
        let (worker, at) = swap;
        let [first, second] = [state.rows[worker][at], state.rows[worker][at + 1]];
        recent.push_back((second, first));
        if recent.len() > N_RECENT + rng.random_range(0..N_RECENT) {
            recent.pop_front();
        }
        state.rows[worker].swap(at, at + 1);
        if !state.update() {
            state.rows[worker].swap(at, at + 1);
            state.update();
            continue;
        }
        let makespan = state.makespan;
        if !is_shorter(best.makespan, makespan) {
            best = Order { rows: state.rows.clone(), starts: state.starts.clone(), makespan };
        }
    }
    best
}

/// The least number of swaps that are not taken back.
const N_RECENT: usize = 8;

/// The number of no node.
const NO_NODE: u32 = u32::MAX;

/// Rows of cells and their times.
struct Rows<'g> {
    graph: &'g Graph,
    takes: Vec<f64>,
    rows: Vec<Vec<u32>>,
    /// For each node, the one after it in its row, or [`NO_NODE`].
    next: Vec<u32>,
    starts: Vec<f64>,
    /// For each node, the longest path from its end to the end of the step.
    tails: Vec<f64>,
    /// For each node, the saved activations that its worker holds before it.
    held: Vec<f64>,
    /// The nodes, each after all that it waits for.
    sequence: Vec<u32>,
    n_open: Vec<u32>,
    makespan: f64,
}

impl Rows<'_> {
    fn of(graph: &Graph, rows: Vec<Vec<u32>>) -> Rows<'_> {
        let n = graph.nodes.len();
        Rows {
            graph,
            takes: graph.nodes.iter().map(|node| node.takes).collect(),
            rows,
            next: vec![NO_NODE; n],
            starts: vec![0.0; n],
            tails: vec![0.0; n],
            held: vec![0.0; n],
            sequence: Vec::with_capacity(n),
            n_open: vec![0; n],
            makespan: 0.0,
        }
    }

    /// Computes all times. Returns false if the rows wait for each other.
    fn update(&mut self) -> bool {
        let Rows { graph, takes, rows, next, starts, tails, held, sequence, n_open, makespan } =
            self;
        for row in rows.iter() {
            let mut now = 0.0;
            for (place, &id) in row.iter().enumerate() {
                let node = &graph.nodes[id as usize];
                next[id as usize] = row.get(place + 1).copied().unwrap_or(NO_NODE);
                held[id as usize] = now;
                now += node.adds - node.frees;
                n_open[id as usize] = graph.preds(id as usize).len() as u32 + u32::from(place > 0);
            }
        }
        sequence.clear();
        let firsts = rows.iter().filter_map(|row| row.first());
        sequence.extend(firsts.filter(|id| n_open[**id as usize] == 0));
        starts.fill(0.0);
        *makespan = 0.0;
        let after = |id: usize, next: u32| {
            let edges = graph.succs(id).iter().map(|edge| (edge.node as usize, edge.lag));
            edges.chain((next != NO_NODE).then_some((next as usize, 0.0)))
        };
        let mut done = 0;
        while let Some(&id) = sequence.get(done) {
            done += 1;
            let id = id as usize;
            let end = starts[id] + takes[id];
            *makespan = makespan.max(end);
            for (later, lag) in after(id, next[id]) {
                starts[later] = starts[later].max(end + lag);
                n_open[later] -= 1;
                if n_open[later] == 0 {
                    sequence.push(later as u32);
                }
            }
        }
        if sequence.len() < takes.len() {
            return false;
        }
        for &id in sequence.iter().rev() {
            let id = id as usize;
            let tail = |(later, lag): (usize, f64)| lag + takes[later] + tails[later];
            tails[id] = after(id, next[id]).map(tail).fold(0.0, f64::max);
        }
        true
    }

    /// The worker and the place of the first cell of the swap of least estimated makespan, except
    /// `recent` ones that do not lead below `best`.
    fn best_swap(
        &self,
        limits: &Limits,
        recent: &VecDeque<(u32, u32)>,
        best: f64,
        rng: &mut ChaCha8Rng,
    ) -> Option<(usize, usize)> {
        let mut chosen = None;
        let mut least = f64::INFINITY;
        let mut n_alike = 0;
        for (worker, at) in self.critical_pairs() {
            let [first, second] = [self.rows[worker][at], self.rows[worker][at + 1]];
            if !self.may_swap(first, second, limits) {
                continue;
            }
            let makespan = self.estimate(worker, at);
            if recent.contains(&(first, second)) && !is_shorter(makespan, best) {
                continue;
            }
            if is_shorter(makespan, least) {
                (least, n_alike) = (makespan, 0);
            } else if is_shorter(least, makespan) {
                continue;
            }
            n_alike += 1;
            if rng.random_range(0..n_alike) == 0 {
                chosen = Some((worker, at));
            }
        }
        chosen
    }

    /// The neighbours of a row of which the second starts when the first ends, both on a longest
    /// path.
    fn critical_pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let slack = self.makespan * 1e-9;
        let is_critical = move |id: u32| {
            let id = id as usize;
            self.starts[id] + self.takes[id] + self.tails[id] >= self.makespan - slack
        };
        let touch = move |first: u32, second: u32| {
            let end = self.starts[first as usize] + self.takes[first as usize];
            self.starts[second as usize] <= end + slack
        };
        self.rows.iter().enumerate().flat_map(move |(worker, row)| {
            let pairs = row.windows(2).enumerate();
            let critical = pairs.filter(move |(_, pair)| {
                is_critical(pair[0]) && is_critical(pair[1]) && touch(pair[0], pair[1])
            });
            critical.map(move |(at, _)| (worker, at))
        })
    }

    /// Returns true if the second does not wait for the first, and there is memory.
    fn may_swap(&self, first: u32, second: u32, limits: &Limits) -> bool {
        let waits = |edge: &Edge| edge.node == first;
        if self.graph.preds(second as usize).iter().any(waits) {
            return false;
        }
        let Some(most) = limits.worker else { return true };
        let [a, b] = [first, second].map(|id| &self.graph.nodes[id as usize]);
        let held = self.held[first as usize];
        let peak = (held + b.adds).max(held + b.adds - b.frees + a.adds);
        b.adds <= 0.0 && a.adds <= 0.0 || peak <= most + ROUNDING
    }

    /// A lower bound on the longest path through two neighbours once they are swapped.
    fn estimate(&self, worker: usize, at: usize) -> f64 {
        let row = &self.rows[worker];
        let graph = self.graph;
        let takes = |id: u32| self.takes[id as usize];
        let end = |id: u32| self.starts[id as usize] + takes(id);
        let [first, second] = [row[at], row[at + 1]];
        let ready = |id: u32| {
            let preds = graph.preds(id as usize).iter();
            preds.map(|edge| end(edge.node) + edge.lag).fold(0.0, f64::max)
        };
        let after = |id: u32| takes(id) + self.tails[id as usize];
        let left = |id: u32| {
            let succs = graph.succs(id as usize).iter();
            succs.map(|edge| edge.lag + after(edge.node)).fold(0.0, f64::max)
        };
        let before = if at > 0 { end(row[at - 1]) } else { 0.0 };
        let second_end = before.max(ready(second)) + takes(second);
        let first_end = second_end.max(ready(first)) + takes(first);
        let first_tail = row.get(at + 2).map_or(0.0, |next| after(*next)).max(left(first));
        let second_tail = (takes(first) + first_tail).max(left(second));
        (second_end + second_tail).max(first_end + first_tail)
    }
}
