//! The search for a short order under a memory limit.
//!
//! Keys are drawn at random and listed; the resulting order is justified while it gets shorter.
//! Most keys are the keys of the best order so far, shaken within a stretch of time (iterated
//! greedy). The search ends at the lower bound.

use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustc_hash::FxHashMap;

use super::clock::Clock;
use crate::analyze::structure;
use crate::analyze::{Timeline, Work, simulate};
use crate::costs::Costs;
use crate::costs::is_shorter;
use crate::ir::op::{Cell, Op};
use crate::ir::timetable::Timetable;
use crate::lower::{Lowering, Sync, lower, objective};
use crate::order::{Graph, Keys, Limits, Order, OrderObjective, bound, justified, list, releases};

/// The limits of a search.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Search {
    /// The most micro-batches with activations that a worker may hold.
    pub max_peak: Option<f64>,
    /// Number of orders to try. The same number and seed give the same result, unless time runs
    /// out.
    pub n_orders: u64,
    /// Time limit. It ends the current attempt, but the search continues until some order keeps to
    /// the memory limit.
    pub time_limit: Duration,
    /// Key of the random draws.
    pub seed: u64,
    /// The clock of `time_limit`.
    pub clock: Clock,
}

impl Default for Search {
    /// No memory limit, twenty thousand orders, ten seconds.
    fn default() -> Search {
        Search {
            max_peak: None,
            n_orders: 20_000,
            time_limit: Duration::from_secs(10),
            seed: 1,
            clock: Clock::default(),
        }
    }
}

/// The progress of a search.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Progress {
    /// The shortest makespan so far, in the unit of the costs; infinite if nothing fits yet.
    pub makespan: f64,
    /// A lower bound on the makespan of any order of any start's cells in which the ops of a stage
    /// keep their order; 0 if there was no time to look at all starts.
    pub lower_bound: f64,
    /// Number of orders tried.
    pub n_orders: u64,
}

impl Progress {
    /// Returns true if there was time to find a bound.
    pub fn has_bound(&self) -> bool {
        self.lower_bound > 0.0 || self.makespan <= 0.0
    }

    /// Returns true if the shortest makespan so far is the bound.
    pub fn is_optimal(&self) -> bool {
        !is_shorter(self.lower_bound, self.makespan)
    }
}

/// The best result of a search.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// The timetable, proven under the memory limit. It is named `auto`, or after the start if
    /// nothing better was found.
    pub timetable: Timetable,
    /// Its makespan and the orders tried.
    pub progress: Progress,
}

/// Searches for a shorter order of the ops of any one of `starts`, each with its costs. Among
/// equally short orders it prefers the one that holds fewer saved activations, then the one that
/// keeps less for recomputations. The result is never worse than the best start under the memory
/// limit that there was time for. `None` if not even one order keeps to it. `observe` is called
/// from time to time, and after every gain.
pub fn search<C: Costs>(
    starts: &[(Timetable, C)],
    how: &Search,
    mut observe: impl FnMut(&Progress),
) -> Option<Found> {
    let mut state = SearchState::new(how);
    for (timetable, costs) in starts {
        if state.has_found() && state.is_late() {
            state.leave_out();
            break;
        }
        state.start(timetable, costs);
    }
    state.run(how.n_orders, how.time_limit, &mut observe)
}

/// The state of a search.
pub(super) struct SearchState<'h> {
    how: &'h Search,
    lowering: Lowering,
    began: Duration,
    problems: Vec<Problem>,
    best: Option<Timetable>,
    /// The objective of the best order.
    objective: OrderObjective,
    pub(super) progress: Progress,
}

impl<'h> SearchState<'h> {
    /// A search that begins now.
    pub(super) fn new(how: &'h Search) -> SearchState<'h> {
        SearchState {
            how,
            lowering: Lowering { sync: Sync::AtEnd, max_peak: how.max_peak, ..Lowering::default() },
            began: how.clock.now(),
            problems: Vec::new(),
            best: None,
            objective: OrderObjective::NONE,
            progress: Progress { makespan: f64::INFINITY, lower_bound: f64::INFINITY, n_orders: 0 },
        }
    }

    /// Returns true if some order keeps to the limit.
    pub(super) fn has_found(&self) -> bool {
        self.best.is_some()
    }

    pub(super) fn is_late(&self) -> bool {
        self.how.clock.since(self.began) >= self.how.time_limit
    }

    /// Leaves starts out, so nothing is known of their orders.
    pub(super) fn leave_out(&mut self) {
        self.progress.lower_bound = 0.0;
    }

    /// Adds a start. Returns its objective, if it keeps to the limit.
    pub(super) fn start(
        &mut self,
        timetable: &Timetable,
        costs: &impl Costs,
    ) -> Option<OrderObjective> {
        // It may be in no useful order, but must have every op once, on the worker of its stage.
        structure::check(timetable, &[]).ok()?;
        let cells = all_cells(timetable);
        let known = self.problems.iter().position(|p| p.cells == cells);
        let known = known.unwrap_or_else(|| {
            let problem = Problem::new(timetable, cells, costs, self.how.max_peak);
            let progress = &mut self.progress;
            progress.lower_bound = progress.lower_bound.min(problem.lower_bound);
            self.problems.push(problem);
            self.problems.len() - 1
        });
        let problem = &mut self.problems[known];
        let program = lower(timetable, &self.lowering).ok()?;
        let timeline = simulate(&program, costs);
        let objective = objective(&program, &timeline);
        problem.start_from(timetable, &timeline, &objective);
        if objective.is_better_than(&self.objective) {
            self.keep(timetable.clone(), objective);
        }
        Some(objective)
    }

    fn keep(&mut self, timetable: Timetable, objective: OrderObjective) {
        (self.progress.makespan, self.objective, self.best) =
            (objective.makespan, objective, Some(timetable));
    }

    /// Tries `n_orders` orders while there is time. While nothing is found, every set of ops is
    /// tried once even without time: there may be no other order that fits.
    pub(super) fn run(
        mut self,
        n_orders: u64,
        time_limit: Duration,
        observe: &mut dyn FnMut(&Progress),
    ) -> Option<Found> {
        let clock = self.how.clock;
        let began = self.began;
        let is_late = || clock.since(began) >= time_limit;
        let mut rng = ChaCha8Rng::seed_from_u64(self.how.seed);
        let mut observed = clock.now();
        observe(&self.progress);
        let mut is_first = true;
        loop {
            let mut is_done = true;
            let has_orders = self.progress.n_orders < n_orders;
            for at in 0..self.problems.len() {
                let must = is_first && self.best.is_none();
                let problem = &mut self.problems[at];
                let is_optimal = !is_shorter(problem.lower_bound, self.progress.makespan);
                if is_optimal || !must && (is_late() || !has_orders) {
                    continue;
                }
                is_done = false;
                self.progress.n_orders += problem.try_one(&mut rng, &is_late);
                let gained = self.gain(at);
                if gained || clock.since(observed) > Duration::from_millis(100) {
                    observed = clock.now();
                    observe(&self.progress);
                }
            }
            if is_done {
                break;
            }
            is_first = false;
        }
        let progress = self.progress;
        self.best.map(|timetable| Found { timetable, progress })
    }

    /// Keeps the best order of a problem if it is better than all.
    fn gain(&mut self, at: usize) -> bool {
        let problem = &mut self.problems[at];
        let objective = problem.objective();
        if !objective.is_better_than(&self.objective) {
            return false;
        }
        let timetable = problem.timetable().filter(|t| lower(t, &self.lowering).is_ok());
        debug_assert!(timetable.is_some(), "an order of the list scheduler is refused");
        match timetable {
            Some(timetable) => self.keep(timetable, objective),
            None => problem.best = None,
        }
        true
    }
}

/// One set of ops, in any order.
struct Problem {
    timetable: Timetable,
    cells: Vec<(Op, Option<Op>)>,
    graph: Graph,
    reversed: Graph,
    heads: Vec<f64>,
    tails: Vec<f64>,
    limits: Limits,
    lower_bound: f64,
    best: Option<Order>,
}

impl Problem {
    fn new(
        timetable: &Timetable,
        cells: Vec<(Op, Option<Op>)>,
        costs: &impl Costs,
        max_peak: Option<f64>,
    ) -> Problem {
        let graph = Graph::of(timetable, costs);
        let reversed = graph.reversed();
        Problem {
            timetable: timetable.clone(),
            cells,
            heads: graph.heads(),
            tails: reversed.heads(),
            limits: Limits { worker: max_peak, pipe: None },
            lower_bound: bound(timetable, &graph, costs, max_peak),
            graph,
            reversed,
            best: None,
        }
    }

    /// The objective of the best order.
    fn objective(&self) -> OrderObjective {
        self.best.as_ref().map_or(OrderObjective::NONE, |best| best.objective(&self.graph))
    }

    /// Adopts the order of a start of this objective, if it is better.
    fn start_from(
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

    /// Draws keys, lists and justifies them, and keeps the order if it is no longer than the best,
    /// even if it holds more, since a shorter one may follow. Returns the number of orders that it
    /// tried.
    fn try_one(&mut self, rng: &mut ChaCha8Rng, is_late: &impl Fn() -> bool) -> u64 {
        let slack = SLACKS[rng.random_range(0..SLACKS.len())] * self.graph.unit;
        let (mut keys, limits) = match &self.best {
            Some(best) if rng.random_bool(0.95) => {
                (self.shaken(best, slack, rng), self.limits.clone())
            }
            _ => self.drawn(rng),
        };
        keys.patience = PATIENCES[rng.random_range(0..PATIENCES.len())] * self.graph.unit;
        let mut n_orders = 1;
        let Some(mut order) = list(&self.graph, &keys, &limits) else {
            return n_orders;
        };
        for _ in 0..4 {
            if is_late() {
                break;
            }
            n_orders += 2;
            match justified([&self.graph, &self.reversed], &order, &limits, slack, keys.patience) {
                Some(shorter) if is_shorter(shorter.makespan, order.makespan) => order = shorter,
                _ => break,
            }
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

    /// New keys: early ops or those with a long path to the end first, and either forwards or
    /// backwards first. Sometimes there is a limit for each pipe, which keeps the pipes of a
    /// bidirectional placement apart.
    fn drawn(&self, rng: &mut ChaCha8Rng) -> (Keys, Limits) {
        let shift = SHIFTS[rng.random_range(0..SHIFTS.len())] * self.graph.unit;
        let early = rng.random_range(0.0..=1.0);
        let delay = rng.random_range(-5.0..=20.0) * self.graph.unit;
        let key = |i: usize| {
            let late = if self.graph.nodes[i].adds > 0.0 { delay } else { 0.0 };
            let urgency = early * self.heads[i] - (1.0 - early) * self.tails[i];
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
    fn timetable(&self) -> Option<Timetable> {
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
fn all_cells(timetable: &Timetable) -> Vec<(Op, Option<Op>)> {
    let mut cells: Vec<_> = timetable.rows.iter().flatten().map(|cell| cell.parts()).collect();
    cells.sort_unstable();
    cells
}
