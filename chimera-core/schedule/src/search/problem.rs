//! One set of ops to order: the moves by which a search improves an order of them.

mod fit;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rustc_hash::FxHashMap;

use super::pattern::{Pattern, Ways};
use super::proof::BoundProof;
use crate::analyze::{Timeline, Work};
use crate::costs::{Costs, is_shorter};
use crate::ir::op::{Cell, Op};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;
use crate::order::{
    Graph, Keys, Limits, N_SWAPS, Order, OrderObjective, SWAP_SHARE, SWAPS_PER_ORDER, bound,
    capped, justified, list, parts, releases, swapped,
};

/// One set of ops, in any order.
pub(super) struct Problem {
    timetable: Timetable,
    pub(super) cells: Vec<(Op, Option<Op>)>,
    /// The cells of its parts, if it combines ops.
    pub(super) parts: Option<Vec<(Op, Option<Op>)>>,
    /// Whether its orders are left to another problem.
    pub(super) is_left: bool,
    graph: Graph,
    reversed: Graph,
    /// For each node, the longest path to its start and from its end.
    around: [Vec<f64>; 2],
    limits: Limits,
    /// The lower bound of its orders.
    pub(super) proof: BoundProof,
    pub(super) best: Option<Order>,
    ways: Ways,
    /// The best pattern so far, and the makespan that it led to.
    pattern: Option<(f64, Pattern)>,
    /// Attempts since one of them led to a shorter order.
    n_vain_fits: u32,
}

impl Problem {
    pub(super) fn new(
        timetable: &Timetable,
        cells: Vec<(Op, Option<Op>)>,
        costs: &impl Costs,
        max_peak: Option<f64>,
    ) -> Problem {
        let graph = Graph::of(timetable, costs);
        let reversed = graph.reversed();
        let Timetable { placement, units_per_micro, .. } = timetable;
        let ways = Ways::of(&graph, placement.n_pipes(), placement.n_stages(), *units_per_micro);
        Problem {
            timetable: timetable.clone(),
            cells,
            parts: parts(timetable, costs).map(|parts| all_cells(&parts)),
            is_left: false,
            around: [graph.heads(), reversed.heads()],
            limits: Limits { worker: max_peak, pipe: None },
            proof: BoundProof::new(
                max_peak.and_then(|most| capped(&graph, most)).unwrap_or_else(|| graph.clone()),
                bound(timetable, &graph, costs, max_peak),
            ),
            graph,
            reversed,
            best: None,
            ways,
            pattern: None,
            n_vain_fits: 0,
        }
    }

    pub(super) fn placement(&self) -> &Placement {
        &self.timetable.placement
    }

    /// The objective of the best order.
    pub(super) fn objective(&self) -> OrderObjective {
        self.best.as_ref().map_or(OrderObjective::NONE, |best| best.objective(&self.graph))
    }

    /// Adopts the order of a start of this objective, if it is better.
    pub(super) fn start_from(
        &mut self,
        timetable: &Timetable,
        timeline: &Timeline,
        objective: &OrderObjective,
    ) {
        if !objective.is_better_than(&self.objective()) {
            return;
        }
        let ids: FxHashMap<Cell, u32> =
            (0..).zip(&self.graph.nodes).map(|(id, node)| (node.cell, id)).collect();
        let id = |cell: &Cell| ids.get(cell).copied();
        let rows = timetable.rows.iter().map(|row| row.iter().map(id).collect());
        let Some(rows) = rows.collect::<Option<Vec<Vec<u32>>>>() else { return };
        let mut starts = vec![0.0; self.graph.nodes.len()];
        for event in &timeline.events {
            if let Work::Cell(cell) = event.work
                && let Some(id) = ids.get(&cell)
            {
                starts[*id as usize] = event.start;
            }
        }
        self.best = Some(Order { rows, starts, makespan: objective.makespan });
    }

    /// Draws keys, lists and justifies them, and keeps the order if it is at most as long as the
    /// best, even if it holds more, since a shorter one may follow. Returns the number of orders that it
    /// tried.
    pub(super) fn try_one(&mut self, rng: &mut ChaCha8Rng, is_late: &impl Fn() -> bool) -> u64 {
        if let Some(best) = &self.best
            && rng.random_bool(SWAP_SHARE)
        {
            self.best = Some(swapped(&self.graph, best, &self.limits, N_SWAPS, rng, is_late));
            return N_SWAPS as u64 / SWAPS_PER_ORDER;
        }
        if let Some(n_orders) = self.fit(rng, is_late) {
            return n_orders;
        }
        let slack = SLACKS[rng.random_range(0..SLACKS.len())] * self.graph.unit;
        let mut pattern = None;
        let (mut keys, limits) = match &self.best {
            _ if self.limits.worker.is_some() && rng.random_bool(0.3) => {
                let next = match &self.pattern {
                    Some((_, best)) if rng.random_bool(0.7) => best.mutated(rng),
                    _ => Pattern::drawn(rng),
                };
                let keys = next.keys(&self.graph, &self.ways);
                pattern = Some(next);
                (keys, self.limits.clone())
            }
            Some(best) if rng.random_bool(if self.proof.within.is_some() { 0.8 } else { 0.95 }) => {
                (self.shaken(best, slack, rng), self.limits.clone())
            }
            _ => self.drawn(rng),
        };
        keys.patience = PATIENCES[rng.random_range(0..PATIENCES.len())] * self.graph.unit;
        let mut n_orders = 1;
        let Some(mut order) = list(&self.graph, &keys, &limits) else {
            return n_orders;
        };
        let hopeless = self.best.as_ref().is_some_and(|best| order.makespan > 1.2 * best.makespan);
        for _ in 0..if hopeless { 0 } else { 4 } {
            if is_late() {
                break;
            }
            n_orders += 2;
            match justified([&self.graph, &self.reversed], &order, &limits, slack, keys.patience) {
                Some(shorter) if is_shorter(shorter.makespan, order.makespan) => order = shorter,
                _ => break,
            }
        }
        if let Some(pattern) = pattern
            && self.pattern.as_ref().is_none_or(|(makespan, _)| order.makespan <= *makespan)
        {
            self.pattern = Some((order.makespan, pattern));
        }
        if self.best.as_ref().is_none_or(|best| !is_shorter(best.makespan, order.makespan)) {
            self.best = Some(order);
        }
        n_orders
    }

    /// The starts of the best order, some of them moved.
    fn shaken(&self, best: &Order, slack: f64, rng: &mut ChaCha8Rng) -> Keys {
        let shift = SHIFTS[rng.random_range(0..SHIFTS.len())] * self.graph.unit;
        let (mut from, mut to) = (0.0, best.makespan);
        if rng.random_bool(0.5) {
            (from, to) = (rng.random_range(from..=to), rng.random_range(from..=to));
        }
        let stretch = from.min(to)..=from.max(to);
        let shake = |start: &f64| {
            if stretch.contains(start) {
                start + shift * rng.random_range(-1.0..=1.0)
            } else {
                *start
            }
        };
        let urgency: Vec<f64> = best.starts.iter().map(shake).collect();
        let releases = releases(&self.graph, &urgency, slack);
        Keys { urgency, releases, patience: 0.0 }
    }

    /// Fresh keys: early ops, or those with a long way to go, and either forwards or backwards
    /// first; sometimes with a limit for each pipe, which keeps the pipes of a bidirectional
    /// placement apart.
    fn drawn(&self, rng: &mut ChaCha8Rng) -> (Keys, Limits) {
        let shift = SHIFTS[rng.random_range(0..SHIFTS.len())] * self.graph.unit;
        let early = rng.random_range(0.0..=1.0);
        let delay = rng.random_range(-5.0..=20.0) * self.graph.unit;
        let [heads, tails] = match &self.proof.within {
            Some(windows) if rng.random_bool(0.8) => windows.around(),
            _ => &self.around,
        };
        let key = |i: usize| {
            let late = if self.graph.nodes[i].adds > 0.0 { delay } else { 0.0 };
            let urgency = early * heads[i] - (1.0 - early) * tails[i];
            urgency + late + shift * rng.random_range(-1.0..=1.0)
        };
        let urgency = (0..self.graph.nodes.len()).map(key).collect();
        let pipe = match self.limits.worker {
            Some(most) if rng.random_bool(0.5) => {
                Some((most * rng.random_range(0.5..=1.0)).round().max(1.0))
            }
            _ => None,
        };
        (Keys { urgency, ..Keys::default() }, Limits { pipe, ..self.limits.clone() })
    }

    /// The best order as a timetable.
    pub(super) fn timetable(&self) -> Option<Timetable> {
        let rows = self.best.as_ref()?.cells(&self.graph);
        Some(Timetable { schedule: "auto".into(), rows, ..self.timetable.clone() })
    }
}

/// Time for which a worker waits for a more urgent op, in mean ops.
const PATIENCES: [f64; 5] = [0.0, 0.0, 0.5, 1.0, 2.0];
/// Time by which an op that adds saved activations may begin earlier than before, in mean ops.
const SLACKS: [f64; 5] = [0.0, 1.0, 2.0, 4.0, f64::INFINITY];
/// Distances by which keys are moved, in mean ops.
const SHIFTS: [f64; 6] = [0.0, 0.5, 1.0, 2.0, 4.0, 8.0];

/// The cells to order, without their order.
pub(super) fn all_cells(timetable: &Timetable) -> Vec<(Op, Option<Op>)> {
    let mut cells: Vec<_> = timetable.rows.iter().flatten().map(|cell| cell.parts()).collect();
    cells.sort_unstable();
    cells
}
