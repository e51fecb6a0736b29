//! Proofs that no order of some cells is shorter than the best.

use crate::costs::is_shorter;
use crate::order::{Graph, Windows, unit};

/// A lower bound on the makespan of orders, which proofs raise.
pub(super) struct BoundProof {
    pub(super) lower_bound: f64,
    /// Whether the bound of more orders counts in its place.
    pub(super) is_covered: bool,
    graph: Graph,
    /// A time of which all makespans are multiples, if there is one.
    unit: Option<f64>,
    /// The windows of all orders; the outer `None` until they are computed.
    windows: Option<Option<Windows>>,
    /// The windows of orders that are shorter than the best, if there may be any.
    pub(super) within: Option<Windows>,
    /// The latest end of these.
    pub(super) until: f64,
}

impl BoundProof {
    /// A bound on all orders of a graph.
    pub(super) fn new(graph: Graph, lower_bound: f64) -> BoundProof {
        BoundProof { unit: unit(&graph), ..BoundProof::of_more(graph, lower_bound) }
    }

    /// A bound on all orders of a graph and of more cells.
    pub(super) fn of_more(graph: Graph, lower_bound: f64) -> BoundProof {
        BoundProof {
            lower_bound,
            is_covered: false,
            graph,
            unit: None,
            windows: None,
            within: None,
            until: f64::INFINITY,
        }
    }

    /// Returns true if some orders may be shorter than `makespan`.
    pub(super) fn is_open(&self, makespan: f64) -> bool {
        is_shorter(self.lower_bound, makespan)
    }

    /// The longest makespan that is shorter, if all are multiples of a unit.
    pub(super) fn shorter(&self, makespan: f64) -> f64 {
        /// Rounding of makespans, in units.
        const ROUNDING: f64 = 1e-3;
        let less = makespan * (1.0 - 1e-8);
        self.unit.map_or(less, |unit| {
            let n = (makespan / unit - ROUNDING).ceil() - 1.0;
            less.min((n + ROUNDING) * unit)
        })
    }

    /// Raises the bound, since no order ends by `until`.
    pub(super) fn exclude(&mut self, until: f64) {
        let least = self.unit.map_or(until, |unit| ((until / unit).floor() + 1.0) * unit);
        self.lower_bound = self.lower_bound.max(least);
    }

    /// Raises the bound by the windows of orders that are shorter than `makespan`: at most to
    /// `makespan`, if there are none.
    pub(super) fn tighten(&mut self, makespan: f64, is_late: &impl Fn() -> bool) {
        if !self.is_open(makespan) {
            return;
        }
        let (graph, until) = (&self.graph, self.shorter(makespan));
        let windows = self.windows.get_or_insert_with(|| Windows::of(graph, &graph.reversed()));
        let Some(windows) = windows else { return };
        self.lower_bound = self.lower_bound.max(windows.lower_bound());
        if is_shorter(self.lower_bound, makespan) && makespan.is_finite() {
            self.until = until;
            self.within = windows.until(until, N_ROUNDS, is_late);
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
        let Some(within) = self.within.clone() else { return };
        let mut most = makespan;
        for _ in 0..N_HALVINGS {
            let until = f64::midpoint(self.lower_bound, most).min(self.until);
            match within.sooner(until, N_ROUNDS, is_late) {
                None => self.exclude(until),
                Some(_) => most = until,
            }
        }
        let n_tests = (n_orders as usize).saturating_mul(PAIRS_PER_ORDER) / within.n_pairs().max(1);
        let until = self.shorter(makespan);
        let is_proven = match within.ordered(until, n_tests * TESTS_OF_ORDER, is_late) {
            Some(within) => within.shaved(until, n_tests, is_late).is_none(),
            None => true,
        };
        if is_proven {
            self.lower_bound = makespan;
        }
    }
}

/// Rounds in which windows shrink.
const N_ROUNDS: usize = 30;
/// Pairs of cells that tests look at in place of an order.
const PAIRS_PER_ORDER: usize = 1 << 12;
/// Tests of the order of cells in place of a test of one window, since they change few windows.
const TESTS_OF_ORDER: usize = 8;
/// Halvings of the interval between the bound and the best.
const N_HALVINGS: usize = 6;
