//! Orders built cell by cell, within windows that shrink.
//!
//! A cell runs first of the rest of its worker's, and the windows of all others shrink by that. If
//! one gets too short, the cell does not run first, and by that windows shrink too (schedule or
//! postpone: Le Pape, Couronné, Vergamini and Gosselin, 1994).

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::super::graph::Graph;
use super::super::list::{Limits, Order, SavedActivations};
use super::Windows;

/// Rounds in which windows shrink after a choice.
const N_ROUNDS: usize = 2;

/// Number of the last choices that can be taken back.
const N_CHOICES: usize = 64;

/// An order to build.
#[derive(Clone, Copy)]
pub(crate) struct DeadlineSearch<'g> {
    pub(crate) graph: &'g Graph,
    /// Of these, the limit of workers.
    pub(crate) limits: &'g Limits,
    /// The latest end.
    pub(crate) until: f64,
    /// Cells are chosen by their latest starts, shaken by at most this.
    pub(crate) noise: f64,
    /// Number of choices that may turn out wrong.
    pub(crate) n_fails: usize,
}

impl DeadlineSearch<'_> {
    /// An order that ends in time, if one was found, and the number of choices that were tried.
    /// `windows` are those of such orders.
    pub(crate) fn order(
        &self,
        windows: Windows,
        rng: &mut ChaCha8Rng,
        is_late: &impl Fn() -> bool,
    ) -> (Option<Order>, u64) {
        let mut n_choices = 0;
        let mut part = PartialOrder::new(self, windows);
        let mut choices: VecDeque<(PartialOrder, u32)> = VecDeque::new();
        let mut n_fails = self.n_fails;
        while part.n_left > 0 {
            let Some(cell) = part.choose(self, rng).filter(|_| !is_late()) else {
                return (None, n_choices);
            };
            n_choices += 1;
            if let Some(next) = part.with(self, cell, is_late) {
                choices.push_back((std::mem::replace(&mut part, next), cell));
                if choices.len() > N_CHOICES {
                    choices.pop_front();
                }
                continue;
            }
            let mut without = part.without(self, cell, is_late);
            loop {
                n_choices += 1;
                if n_fails == 0 {
                    return (None, n_choices);
                }
                n_fails -= 1;
                if let Some(other) = without {
                    part = other;
                    break;
                }
                let Some((earlier, cell)) = choices.pop_back() else { return (None, n_choices) };
                without = earlier.without(self, cell, is_late);
            }
        }
        (Some(part.finish(self.graph)), n_choices)
    }
}

/// The first part of an order.
#[derive(Clone)]
struct PartialOrder {
    windows: Windows,
    /// Number of cells of each lane that are placed.
    n_placed: Vec<u32>,
    /// The activations of each worker.
    held: Vec<Arc<SavedActivations>>,
    n_left: usize,
}

impl PartialOrder {
    fn new(search: &DeadlineSearch<'_>, windows: Windows) -> PartialOrder {
        PartialOrder {
            n_placed: vec![0; windows.sides[0].lanes.len()],
            held: SavedActivations::of(search.graph).into_iter().map(Arc::new).collect(),
            n_left: search.graph.nodes.len(),
            windows,
        }
    }

    /// The first cells of lanes that are not placed.
    fn firsts(&self) -> impl Iterator<Item = u32> {
        let lanes = self.windows.sides[0].lanes.iter().zip(&self.n_placed);
        lanes.filter_map(|(lane, n)| lane.get(*n as usize).copied())
    }

    fn start(&self, cell: u32) -> f64 {
        self.windows.around[0][cell as usize]
    }

    /// A cell of the worker that can continue first. The worker does not wait for it as long as
    /// another cell would take.
    fn choose(&self, search: &DeadlineSearch<'_>, rng: &mut ChaCha8Rng) -> Option<u32> {
        let graph = search.graph;
        let mut by_worker = vec![(f64::INFINITY, f64::INFINITY); graph.n_workers];
        let able: Vec<u32> = self.firsts().filter(|cell| self.is_able(search, *cell)).collect();
        for cell in &able {
            let node = &graph.nodes[*cell as usize];
            let (start, end) = &mut by_worker[usize::from(node.worker)];
            *start = start.min(self.start(*cell));
            *end = end.min(self.start(*cell) + node.takes);
        }
        let starts = by_worker.iter().map(|(start, _)| *start).enumerate();
        let (worker, _) = starts.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        let (_, end) = by_worker[worker];
        let mut chosen = None;
        let mut least = f64::INFINITY;
        for cell in able {
            let node = &graph.nodes[cell as usize];
            let start = self.start(cell);
            if usize::from(node.worker) != worker || start >= end && node.takes > 0.0 {
                continue;
            }
            let latest = search.until - self.windows.around[1][cell as usize] - node.takes;
            let key = latest + search.noise * rng.random_range(0.0..=1.0);
            if key < least || chosen.is_none() {
                (chosen, least) = (Some(cell), key);
            }
        }
        chosen
    }

    /// Returns true if all that a cell waits for is placed, and there is memory.
    fn is_able(&self, search: &DeadlineSearch<'_>, cell: u32) -> bool {
        let node = &search.graph.nodes[cell as usize];
        let side = &self.windows.sides[0];
        let is_placed = |before: u32| {
            let (lane, place) = side.in_lane[before as usize];
            place < self.n_placed[lane as usize]
        };
        self.held[usize::from(node.worker)].has_for(node, search.limits)
            && search.graph.preds(cell as usize).iter().all(|edge| is_placed(edge.node))
    }

    /// The part with one more cell; `None` if no such order ends in time.
    fn with(
        &self,
        search: &DeadlineSearch<'_>,
        cell: u32,
        is_late: &impl Fn() -> bool,
    ) -> Option<PartialOrder> {
        let mut next = self.clone();
        let node = &search.graph.nodes[cell as usize];
        let end = self.start(cell) + node.takes;
        let side = &self.windows.sides[0];
        next.n_placed[side.in_lane[cell as usize].0 as usize] += 1;
        Arc::make_mut(&mut next.held[usize::from(node.worker)]).run(node);
        next.n_left -= 1;
        next.windows.raise(1, cell, search.until - end);
        next.windows.is_fixed[cell as usize] = true;
        for other in next.of_worker(search, node.worker) {
            if next.start(other) < end {
                next.windows.raise(0, other, end);
            }
        }
        next.shrunk(search, is_late)
    }

    /// The part if another cell runs before this one; `None` if no such order ends in time.
    fn without(
        &self,
        search: &DeadlineSearch<'_>,
        cell: u32,
        is_late: &impl Fn() -> bool,
    ) -> Option<PartialOrder> {
        let mut next = self.clone();
        let worker = search.graph.nodes[cell as usize].worker;
        let others = self.of_worker(search, worker).into_iter().filter(|other| *other != cell);
        let ends = others.map(|other| self.start(other) + search.graph.nodes[other as usize].takes);
        let end = ends.fold(f64::INFINITY, f64::min);
        if end.is_infinite() {
            return None;
        }
        next.windows.raise(0, cell, end);
        next.shrunk(search, is_late)
    }

    fn of_worker(&self, search: &DeadlineSearch<'_>, worker: u16) -> Vec<u32> {
        self.firsts().filter(|cell| search.graph.nodes[*cell as usize].worker == worker).collect()
    }

    fn shrunk(
        mut self,
        search: &DeadlineSearch<'_>,
        is_late: &impl Fn() -> bool,
    ) -> Option<PartialOrder> {
        self.windows = self.windows.until(search.until, N_ROUNDS, is_late)?;
        Some(self)
    }

    fn finish(self, graph: &Graph) -> Order {
        let Windows { sides, around: [starts, _], .. } = self.windows;
        let mut rows = sides[0].rows.clone();
        let time = |id: u32| (starts[id as usize], graph.nodes[id as usize].takes);
        for row in &mut rows {
            // Cells that take no time come before the one that starts with them.
            row.sort_by(|a, b| time(*a).partial_cmp(&time(*b)).unwrap_or(Ordering::Equal));
        }
        let ends = starts.iter().zip(&graph.nodes).map(|(start, node)| start + node.takes);
        let makespan = ends.fold(0.0, f64::max);
        Order { rows, starts, makespan }
    }
}
