//! Windows of time: how early and how late each cell can run in an order that ends by a given time.
//!
//! A window shrinks by two rules, and by the same with time running backwards. A cell starts after
//! all cells of its worker that it waits for, directly or not, have run one after another. And if
//! some cells of a worker could not end in time once another one has started, that one comes after
//! them (edge finding: Carlier and Pinson, Management Science 1989). If a window becomes too short
//! for its cells, no order ends in time.

mod arcs;
mod fit;
mod side;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub(crate) use self::fit::DeadlineSearch;
use self::side::{Side, SideWindows, Waits};
use super::edges::Late;
use super::graph::Graph;

/// With more pairs of cells that share a worker, windows would take longer than many orders.
const MAX_PAIRS: usize = 1 << 23;

/// The windows of a graph's cells.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    /// From the start of the step, and from its end.
    sides: Arc<[Side; 2]>,
    /// By side and worker: the cells that its cells wait for.
    waits: [Vec<Arc<Waits>>; 2],
    /// By side and node, a lower bound on the time before it.
    around: [Vec<f64>; 2],
    /// By side and worker: whether a window of the worker has shrunk since edges were found there.
    stale_edges: [Vec<bool>; 2],
    /// By side and worker: whether the time before a node of the worker has risen since it was
    /// passed on to those that wait for it.
    stale_waits: [Vec<bool>; 2],
    /// The nodes that have run before all others of their worker, and are looked at no more.
    is_fixed: Vec<bool>,
}

impl Windows {
    /// The windows of any order, however long. `None` if there are too many cells.
    pub(crate) fn of(graph: &Graph, reversed: &Graph) -> Option<Windows> {
        let mut n_cells = vec![0usize; graph.n_workers];
        graph.nodes.iter().for_each(|node| n_cells[usize::from(node.worker)] += 1);
        if n_cells.iter().map(|n| n * n).sum::<usize>() > MAX_PAIRS {
            return None;
        }
        let [(first, first_waits), (last, last_waits)] = [Side::of(graph), Side::of(reversed)];
        let all = || [vec![true; graph.n_workers], vec![true; graph.n_workers]];
        let mut windows = Windows {
            sides: Arc::new([first, last]),
            waits: [first_waits, last_waits],
            around: [vec![0.0; graph.nodes.len()], vec![0.0; graph.nodes.len()]],
            stale_edges: all(),
            stale_waits: all(),
            is_fixed: vec![false; graph.nodes.len()],
        };
        (0..2).for_each(|side| windows.follow(side));
        Some(windows)
    }

    /// A lower bound on the makespan of any order.
    pub(crate) fn lower_bound(&self) -> f64 {
        let [heads, tails] = &self.around;
        let side = &self.sides[0];
        side.rows.iter().map(|row| side.bound(row, heads, tails)).fold(0.0, f64::max)
    }

    /// The windows of orders that end by `until`, after at most `n_rounds` of the rules, while there
    /// is time. `None` if there is no such order.
    pub(crate) fn until(
        &self,
        until: f64,
        n_rounds: usize,
        is_late: &impl Fn() -> bool,
    ) -> Option<Windows> {
        let mut windows = self.clone();
        for _ in 0..n_rounds {
            let is_fixed = !windows.stale_edges.iter().flatten().any(|is_stale| *is_stale);
            if is_fixed || is_late() {
                break;
            }
            (0..2).try_for_each(|side| windows.separate(side, until)).ok()?;
        }
        Some(windows)
    }

    /// Shrinks the windows of orders that end by `until` further, by at most `n_tests` tests: if a
    /// cell cannot run in the first part of its window, it runs later, and likewise for the last.
    /// `None` if there is no such order.
    pub(crate) fn shaved(
        mut self,
        until: f64,
        mut n_tests: usize,
        is_late: &impl Fn() -> bool,
    ) -> Option<Windows> {
        for part in [0.5, 0.2, 0.05] {
            let mut is_changed = true;
            while is_changed {
                is_changed = false;
                for (id, side) in (0..self.around[0].len()).flat_map(|id| [(id, 0), (id, 1)]) {
                    let takes = self.sides[0].takes[id];
                    let [before, after] = [side, 1 - side].map(|side| self.around[side][id]);
                    let room = until - before - takes - after;
                    if room <= until * 1e-6 {
                        continue;
                    }
                    if n_tests == 0 || is_late() {
                        return Some(self);
                    }
                    n_tests -= 1;
                    let mut test = self.clone();
                    test.raise(1 - side, id as u32, after + room * (1.0 - part));
                    if test.until(until, 5, is_late).is_none() {
                        self.raise(side, id as u32, before + room * part);
                        self = self.until(until, 5, is_late)?;
                        is_changed = true;
                    }
                }
            }
        }
        Some(self)
    }

    /// The number of pairs of cells that share a worker: the time of a round of the rules.
    pub(crate) fn n_pairs(&self) -> usize {
        self.sides[0].rows.iter().map(|row| row.len() * row.len()).sum()
    }

    /// For each node, the time before its start and after its end.
    pub(crate) fn around(&self) -> &[Vec<f64>; 2] {
        &self.around
    }

    /// [`until`](Windows::until), where these are windows of orders that end later.
    pub(crate) fn sooner(
        &self,
        until: f64,
        n_rounds: usize,
        is_late: &impl Fn() -> bool,
    ) -> Option<Windows> {
        let all = || vec![true; self.waits[0].len()];
        let stale_edges = [all(), all()];
        Windows { stale_edges, ..self.clone() }.until(until, n_rounds, is_late)
    }

    /// Raises the time before a node as seen from a side.
    fn raise(&mut self, side: usize, node: u32, time: f64) {
        let before = &mut self.around[side][node as usize];
        *before = before.max(time);
        let (row, _) = self.sides[side].in_row[node as usize];
        self.stale_waits[side][row] = true;
        self.stale_edges.iter_mut().for_each(|stale| stale[row] = true);
    }

    /// Raises times by those of the nodes that are waited for.
    fn follow(&mut self, side: usize) {
        let mut risen = vec![false; self.stale_waits[side].len()];
        let mut stale = std::mem::replace(&mut self.stale_waits[side], risen.clone());
        let sides = Arc::clone(&self.sides);
        let windows = SideWindows { waits: &self.waits[side], is_fixed: &self.is_fixed };
        sides[side].follow(windows, &mut self.around[side], &mut stale, &mut risen);
        for (row, _) in risen.iter().enumerate().filter(|(_, is_risen)| **is_risen) {
            self.stale_waits[side][row] = true;
            self.stale_edges.iter_mut().for_each(|stale| stale[row] = true);
        }
    }

    /// Raises times by what an order that ends by `until` needs, and by those that are waited for.
    fn separate(&mut self, side: usize, until: f64) -> Result<(), Late> {
        let [first, last] = &mut self.around;
        let (heads, tails) = if side == 0 { (first, &*last) } else { (last, &*first) };
        for row in 0..self.sides[side].rows.len() {
            if !std::mem::take(&mut self.stale_edges[side][row]) {
                continue;
            }
            if self.sides[side].separate(row, &self.is_fixed, heads, (tails, until))? {
                self.stale_waits[side][row] = true;
                self.stale_edges.iter_mut().for_each(|stale| stale[row] = true);
            }
        }
        self.follow(side);
        Ok(())
    }
}
