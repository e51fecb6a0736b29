//! Laws of the lower bounds, on cases that are small enough to try every order.

use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::bound::lower_bound;
use super::capped::{capped, capped_bound};
use super::choice::choice_bound;
use super::graph::{Graph, unordered};
use super::list::{Limits, Order};
use super::windows::{DeadlineSearch, Windows};
use crate::activation_memory::ROUNDING;
use crate::costs::{StageCosts, UniformCosts};
use crate::ir::placement::Placement;

/// The starts of a shortest order, found by trying all.
struct Shortest<'g> {
    graph: &'g Graph,
    max_peak: f64,
    tails: Vec<f64>,
    starts: Vec<f64>,
    n_open: Vec<usize>,
    free: Vec<f64>,
    held: Vec<f64>,
    makespan: f64,
    best: Vec<f64>,
}

impl Shortest<'_> {
    fn of(graph: &Graph, max_peak: f64) -> (f64, Vec<f64>) {
        let n = graph.nodes.len();
        let mut state = Shortest {
            graph,
            max_peak,
            tails: graph.reversed().heads(),
            starts: vec![f64::NAN; n],
            n_open: (0..n).map(|i| graph.preds(i).len()).collect(),
            free: vec![0.0; graph.n_workers],
            held: vec![0.0; graph.n_workers],
            makespan: f64::INFINITY,
            best: Vec::new(),
        };
        state.place_next(0, 0.0);
        (state.makespan, state.best)
    }

    /// Places each cell that may run next, and then all others. Cells are placed in the order of
    /// their starts, so that no order is tried twice.
    fn place_next(&mut self, n_placed: usize, last: f64) {
        if n_placed == self.starts.len() {
            let end = |(start, node): (&f64, &super::graph::Node)| start + node.takes;
            let ends = self.starts.iter().zip(&self.graph.nodes).map(end);
            let makespan = ends.fold(0.0, f64::max);
            if makespan < self.makespan {
                (self.makespan, self.best) = (makespan, self.starts.clone());
            }
            return;
        }
        for id in 0..self.starts.len() {
            let node = &self.graph.nodes[id];
            let worker = usize::from(node.worker);
            let held = self.held[worker] + node.adds;
            if !self.starts[id].is_nan()
                || self.n_open[id] > 0
                || node.adds > 0.0 && held > self.max_peak + ROUNDING
            {
                continue;
            }
            let ends = self.graph.preds(id).iter().map(|edge| {
                let before = edge.node as usize;
                self.starts[before] + self.graph.nodes[before].takes + edge.lag
            });
            let free = self.free[worker];
            let start = ends.fold(free, f64::max);
            if start < last || start + node.takes + self.tails[id] >= self.makespan {
                continue;
            }
            self.starts[id] = start;
            self.free[worker] = start + node.takes;
            self.held[worker] += node.adds - node.frees;
            self.graph.succs(id).iter().for_each(|edge| self.n_open[edge.node as usize] -= 1);
            self.place_next(n_placed + 1, start);
            self.graph.succs(id).iter().for_each(|edge| self.n_open[edge.node as usize] += 1);
            self.held[worker] -= node.adds - node.frees;
            self.free[worker] = free;
            self.starts[id] = f64::NAN;
        }
    }
}

/// The makespan of the rows of an order.
fn recomputed(graph: &Graph, order: &Order) -> f64 {
    let neighbours = order.rows.iter().flat_map(|row| row.windows(2));
    let rows: Vec<_> = neighbours.map(|pair| (pair[0], pair[1])).collect();
    let heads = graph.with(&rows).heads();
    heads.iter().zip(&graph.nodes).map(|(head, node)| head + node.takes).fold(0.0, f64::max)
}

fn placements() -> impl Strategy<Value = (Placement, u32, bool)> {
    prop_oneof![
        (1u32..=3, any::<bool>()).prop_map(|(n, splits)| (Placement::line(2), n, splits)),
        (1u32..=2).prop_map(|n| (Placement::line(3), n, false)),
        (1u32..=2).prop_map(|n| (Placement::wave(2, 2), n, false)),
        (1u32..=2).prop_map(|n| (Placement::interleaved(2, 2), n, false)),
        (1u32..=3, any::<bool>()).prop_map(|(n, splits)| (Placement::mirrored(2, 1), n, splits)),
        (2u32..=3).prop_map(|n| (Placement::mirrored(3, 1), n, false)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// No bound is above the optimum, and the windows of orders as short contain one.
    #[test]
    fn no_bound_is_above_the_optimum(
        (placement, n, splits) in placements(),
        times in prop::collection::vec((1u32..=4, 1u32..=6), 4),
        message in prop::sample::select(vec![0.0, 0.5, 1.5]),
        cap in prop::sample::select(vec![None, Some(1.0), Some(1.5), Some(2.0)]),
    ) {
        let stages = times.iter().map(|(forward, backward)| {
            UniformCosts::new(f64::from(*forward), f64::from(*backward), message)
        });
        let costs = StageCosts::new(stages.collect());
        let graph = Graph::of(&unordered(placement, n, splits), &costs);
        let max_peak = cap.unwrap_or(f64::INFINITY);
        let (makespan, starts) = Shortest::of(&graph, max_peak);
        prop_assert!(makespan.is_finite());
        prop_assert!(lower_bound(&graph) <= makespan);
        let limited = match cap {
            None => graph.clone(),
            Some(cap) => {
                prop_assert!(capped_bound(&graph, cap) <= makespan + 1e-9);
                for may_recompute in [false, true] {
                    prop_assert!(choice_bound(&graph, &costs, cap, may_recompute) <= makespan + 1e-9);
                }
                capped(&graph, cap).expect("an order fits")
            }
        };
        let windows = Windows::of(&limited, &limited.reversed()).expect("few cells");
        prop_assert!(windows.lower_bound() <= makespan + 1e-9);
        let in_time = || false;
        let within = windows.until(makespan, 100, &in_time).expect("an order that ends in time");
        let limits = Limits { worker: cap, pipe: None };
        let search = DeadlineSearch { graph: &limited, limits: &limits, until: makespan, noise: 0.0, n_fails: 10_000 };
        let mut rng = ChaCha8Rng::seed_from_u64(u64::from(n));
        let (order, _) = search.order(within.clone(), &mut rng, &in_time);
        // Where memory binds, an order that keeps room for all others may be longer.
        prop_assert!(order.is_some() || cap.is_some());
        if let Some(order) = order {
            prop_assert!((order.makespan - makespan).abs() < 1e-6);
            prop_assert!((recomputed(&graph, &order) - makespan).abs() < 1e-6);
            prop_assert!(order.objective(&graph).peak <= max_peak + ROUNDING);
        }
        let shaved = within.clone().shaved(makespan, 200, &in_time).expect("the same order");
        let ordered = within.clone().ordered(makespan, 1000, &in_time).expect("the same order");
        for windows in [within, shaved, ordered] {
            let [heads, tails] = windows.around();
            for (id, node) in graph.nodes.iter().enumerate() {
                prop_assert!(heads[id] <= starts[id] + 1e-6);
                prop_assert!(starts[id] + node.takes + tails[id] <= makespan + 1e-6);
            }
        }
    }
}
