//! Proofs that no order of some cells is shorter than the best.

use crate::costs::is_shorter;
use crate::order::{Graph, Windows};

/// A lower bound on the makespan of orders, which proofs raise.
pub(super) struct BoundProof {
    pub(super) lower_bound: f64,
    /// Whether the bound of more orders counts in its place.
    pub(super) is_covered: bool,
    graph: Graph,
    /// The windows of all orders; the outer `None` until they are computed.
    windows: Option<Option<Windows>>,
    /// The windows of orders that are shorter than the best, if there may be any.
    pub(super) within: Option<Windows>,
}

impl BoundProof {
    /// A bound on all orders of a graph.
    pub(super) fn new(graph: Graph, lower_bound: f64) -> BoundProof {
        BoundProof { lower_bound, is_covered: false, graph, windows: None, within: None }
    }

    /// Returns true if some orders may be shorter than `makespan`.
    pub(super) fn is_open(&self, makespan: f64) -> bool {
        is_shorter(self.lower_bound, makespan)
    }

    /// Raises the bound by the windows of orders that are shorter than `makespan`: at most to
    /// `makespan`, if there are none.
    pub(super) fn tighten(&mut self, makespan: f64, is_late: &impl Fn() -> bool) {
        if !self.is_open(makespan) {
            return;
        }
        let graph = &self.graph;
        let windows = self.windows.get_or_insert_with(|| Windows::of(graph, &graph.reversed()));
        let Some(windows) = windows else { return };
        self.lower_bound = self.lower_bound.max(windows.lower_bound());
        if is_shorter(self.lower_bound, makespan) && makespan.is_finite() {
            self.within = windows.until(shorter(makespan), N_ROUNDS, is_late);
            if self.within.is_none() {
                self.lower_bound = makespan;
            }
        }
    }

    /// Like [`tighten`](BoundProof::tighten), with more effort: raises the bound as far as windows
    /// exclude shorter orders, and then tests single cells, as long as `n_orders` orders take.
    pub(super) fn settle(&mut self, makespan: f64, n_orders: u64, is_late: &impl Fn() -> bool) {
        self.tighten(makespan, is_late);
        if !self.is_open(makespan) {
            return;
        }
        let (Some(Some(windows)), Some(within)) = (&self.windows, &self.within) else { return };
        let mut most = makespan;
        for _ in 0..N_HALVINGS {
            let until = f64::midpoint(self.lower_bound, most);
            match windows.until(until, N_ROUNDS, is_late) {
                None => self.lower_bound = until,
                Some(_) => most = until,
            }
        }
        let n_tests = (n_orders as usize).saturating_mul(PAIRS_PER_ORDER) / within.n_pairs().max(1);
        if within.clone().shaved(shorter(makespan), n_tests, is_late).is_none() {
            self.lower_bound = makespan;
        }
    }
}

/// Just less than a makespan.
fn shorter(makespan: f64) -> f64 {
    makespan * (1.0 - 1e-8)
}

/// Rounds in which windows shrink.
const N_ROUNDS: usize = 30;
/// Pairs of cells that tests look at in place of an order.
const PAIRS_PER_ORDER: usize = 1 << 12;
/// Halvings of the interval between the bound and the best.
const N_HALVINGS: usize = 6;
