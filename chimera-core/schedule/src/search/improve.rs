//! The search for a short order under a memory limit.
//!
//! Keys are drawn at random and listed; the resulting order is justified while it gets shorter.
//! Most keys are the keys of the best order so far, shaken within a stretch of time (iterated
//! greedy). The search ends at the lower bound.

mod bounds;

use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::clock::Clock;
use super::problem::{Problem, all_cells};
use super::proof::BoundProof;
use crate::analyze::simulate;
use crate::analyze::structure;
use crate::costs::Costs;
use crate::costs::is_shorter;
use crate::ir::timetable::Timetable;
use crate::lower::{Lowering, Sync, lower, objective};
use crate::order::OrderObjective;

/// The limits of a search.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Search {
    /// The most micro-batches with activations that a worker may hold.
    pub max_peak: Option<f64>,
    /// Number of orders to try, and where placements are chosen, of orders of a thousand cells. The
    /// same number and seed give the same result, unless time runs out.
    pub n_orders: u64,
    /// Time limit. It ends the current attempt, but the search continues until some order keeps to
    /// the memory limit.
    pub time_limit: Duration,
    /// Key of the random draws.
    pub seed: u64,
    /// The most copies of a stage over all workers, where placements are chosen.
    pub weight_copies: usize,
    /// The most stages of a pipe on a worker, where placements are chosen.
    pub max_chunks: usize,
    /// Whether micro-batches stay whole where placements are chosen.
    pub whole_micro_batches: bool,
    /// The clock of `time_limit`.
    pub clock: Clock,
}

impl Default for Search {
    /// No memory limit, twenty thousand orders, ten seconds, two copies and chunks.
    fn default() -> Search {
        Search {
            max_peak: None,
            n_orders: 20_000,
            time_limit: Duration::from_secs(10),
            seed: 1,
            weight_copies: 2,
            max_chunks: 2,
            whole_micro_batches: false,
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
    /// Makespan of `timetable`, and the number of orders tried.
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
    /// Bounds on orders outside of `problems`.
    others: Vec<BoundProof>,
    /// Thousands of cells in the orders tried.
    effort: f64,
    /// Whether some starts were left out.
    is_partial: bool,
}

impl<'h> SearchState<'h> {
    /// A search that begins now.
    pub(super) fn new(how: &'h Search) -> SearchState<'h> {
        SearchState {
            how,
            lowering: Lowering { sync: Sync::AtEnd, max_peak: how.max_peak, ..Lowering::default() },
            began: how.clock.now(),
            problems: Vec::new(),
            others: Vec::new(),
            effort: 0.0,
            is_partial: false,
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
        self.is_partial = true;
    }

    /// Adds a start. Returns its objective, if it keeps to the limit.
    pub(super) fn start(
        &mut self,
        timetable: &Timetable,
        costs: &impl Costs,
    ) -> Option<OrderObjective> {
        let at = self.add(timetable, costs)?;
        let program = lower(timetable, &self.lowering).ok()?;
        let timeline = simulate(&program, costs);
        let objective = objective(&program, &timeline);
        self.problems[at].start_from(timetable, &timeline, &objective);
        if objective.is_better_than(&self.objective) {
            self.keep(timetable.clone(), objective);
        }
        Some(objective)
    }

    /// Adds the ops of a timetable as a problem, unless they are one. Returns its number.
    pub(super) fn add(&mut self, timetable: &Timetable, costs: &impl Costs) -> Option<usize> {
        // It may be in no useful order, but must have every op once and where its stage is.
        structure::check(timetable, &[]).ok()?;
        let cells = all_cells(timetable);
        let is_known = |p: &Problem| p.cells == cells && p.placement() == &timetable.placement;
        let known = self.problems.iter().position(is_known);
        Some(known.unwrap_or_else(|| {
            let problem = Problem::new(timetable, cells, costs, self.how.max_peak);
            let progress = &mut self.progress;
            progress.lower_bound = progress.lower_bound.min(problem.proof.lower_bound);
            self.problems.push(problem);
            self.problems.len() - 1
        }))
    }

    /// Adds a timetable that stays in its order. Returns its objective, if it keeps to the limit.
    pub(super) fn offer(
        &mut self,
        timetable: &Timetable,
        costs: &impl Costs,
    ) -> Option<OrderObjective> {
        let program = lower(timetable, &self.lowering).ok()?;
        let objective = objective(&program, &simulate(&program, costs));
        if objective.is_better_than(&self.objective) {
            self.keep(timetable.clone(), objective);
        }
        Some(objective)
    }

    /// Lowers the bound to that of orders outside of `problems`.
    pub(super) fn bound_by(&mut self, proof: BoundProof) {
        self.progress.lower_bound = self.progress.lower_bound.min(proof.lower_bound);
        self.others.push(proof);
    }

    /// Returns true if nothing can be shorter than `at_least` and than the best so far.
    pub(super) fn is_beaten(&self, at_least: f64) -> bool {
        !is_shorter(at_least, self.progress.makespan)
    }

    /// Tries some of the orders, on the problems of the least bounds.
    pub(super) fn run_quickly(&mut self, observe: &mut dyn FnMut(&Progress)) {
        self.run_round(8, 2, observe);
    }

    /// Tries orders in rounds, each on half of the problems of the round before: those with the
    /// best orders. Ends at the bound, or when orders or time are out.
    pub(super) fn run_rounds(&mut self, observe: &mut dyn FnMut(&Progress)) {
        for (n_problems, share) in [(12, 4), (6, 6), (3, 8), (1, 9)] {
            self.run_round(n_problems, share, observe);
        }
        self.settle();
    }

    /// Tries orders of the most promising problems in turn, until `tenths` of all orders have been
    /// tried or that share of the time is over.
    fn run_round(&mut self, n_problems: usize, tenths: u32, observe: &mut dyn FnMut(&Progress)) {
        let mut rng = ChaCha8Rng::seed_from_u64(self.how.seed.wrapping_add(u64::from(tenths)));
        let clock = self.how.clock;
        let time = self.how.time_limit / 10 * tenths;
        let most = self.how.n_orders as f64 * f64::from(tenths) / 10.0;
        let mut open: Vec<usize> = (0..self.problems.len()).collect();
        let promise = |at: &usize| {
            let problem = &self.problems[*at];
            if tenths > 2 { problem.objective().makespan } else { problem.proof.lower_bound }
        };
        open.sort_by(|a, b| promise(a).total_cmp(&promise(b)));
        let mut turn = 0;
        if self.has_found() {
            let is_late = || clock.since(self.began) >= time;
            for at in open.iter().take(n_problems) {
                self.problems[*at].proof.tighten(self.progress.makespan, &is_late);
            }
            self.update_bound();
        }
        loop {
            let best = self.progress.makespan;
            let is_open = |problem: &Problem| !problem.is_left && problem.proof.is_open(best);
            open.retain(|at| is_open(&self.problems[*at]));
            open.truncate(n_problems);
            let is_late = || clock.since(self.began) >= time;
            if open.is_empty() || self.effort >= most || is_late() {
                return;
            }
            let at = open[turn % open.len()];
            turn += 1;
            let n_orders = self.problems[at].try_one(&mut rng, &is_late);
            self.progress.n_orders += n_orders;
            self.effort += n_orders as f64 * self.problems[at].cells.len() as f64 / 1000.0;
            if self.gain(at) || turn.is_multiple_of(32) {
                observe(&self.progress);
            }
        }
    }

    /// The best so far.
    pub(super) fn finish(self) -> Option<Found> {
        let progress = self.progress;
        self.best.map(|timetable| Found { timetable, progress })
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
                let is_optimal = !is_shorter(problem.proof.lower_bound, self.progress.makespan);
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
