//! The bounds of a search, and proofs that nothing is shorter.

use super::SearchState;
use crate::search::problem::Problem;

impl SearchState<'_> {
    /// Leaves a problem to a bound of more orders.
    pub(in crate::search) fn cover(&mut self, at: usize) {
        self.problems[at].proof.is_covered = true;
    }

    /// Leaves problems of combined ops to the problems of their parts: for each order of the first,
    /// there is one of the parts that is as short.
    pub(in crate::search) fn leave_combined(&mut self) {
        for at in 0..self.problems.len() {
            let problem = &self.problems[at];
            let Some(parts) = &problem.parts else { continue };
            let is_theirs =
                |other: &Problem| other.cells == *parts && other.placement() == problem.placement();
            if self.problems.iter().any(is_theirs) {
                self.problems[at].is_left = true;
                self.cover(at);
            }
        }
    }

    /// Raises the bound of all orders to the least of the problems and of the others.
    pub(super) fn update_bound(&mut self) {
        if !self.is_partial {
            let problems = self.problems.iter().map(|problem| &problem.proof);
            let all = problems.filter(|proof| !proof.is_covered).chain(&self.others);
            let least = all.map(|proof| proof.lower_bound).fold(f64::INFINITY, f64::min);
            self.progress.lower_bound = self.progress.lower_bound.max(least);
        }
    }

    /// Tries to prove that nothing is shorter than the best, and otherwise raises the bound as far
    /// as there is time.
    pub(super) fn settle(&mut self) {
        let makespan = self.progress.makespan;
        let is_late = || self.how.clock.since(self.began) >= self.how.time_limit;
        let problems = self.problems.iter_mut().map(|problem| &mut problem.proof);
        let mut open: Vec<_> =
            problems.filter(|proof| !proof.is_covered).chain(&mut self.others).collect();
        // What is quickly proven comes first, so that the rest of the time is for the least bounds.
        for proof in open.iter_mut().take_while(|_| !is_late()) {
            proof.tighten(makespan, &is_late);
        }
        open.retain(|proof| proof.is_open(makespan));
        open.sort_by(|a, b| a.lower_bound.total_cmp(&b.lower_bound));
        for proof in open {
            if is_late() {
                break;
            }
            proof.settle(makespan, self.how.n_orders, &is_late);
        }
        self.update_bound();
    }
}
