//! Attempts at an order that ends by a time between the bound and the best.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::Problem;
use crate::costs::is_shorter;
use crate::order::DeadlineSearch;

/// Cells that are chosen in attempts, on average, for each time that another order is tried.
const SHARE: f64 = 16.0;

/// With more cells, an attempt takes as long as all other orders: each choice looks at all of them.
const MAX_CELLS: usize = 2000;

/// Attempts in vain, one after another, that halve this share.
const N_VAIN: f64 = 16.0;

/// Choices that count as one order.
const CHOICES_PER_ORDER: u64 = 2;

/// Choices of an attempt that may turn out wrong.
const N_FAILS: usize = 200;

/// Times by which the choice of cells is shaken, in mean ops.
const NOISES: [f64; 4] = [0.0, 0.25, 1.0, 2.0];

/// Rounds in which windows shrink before the first choice.
const N_ROUNDS: usize = 10;

impl Problem {
    /// Once in a while, tries to build an order that ends by a time drawn between the bound and the
    /// best. Keeps it if it is found; raises the bound if there is none. Returns the number of
    /// orders that take as long, or `None` if it is not the time for it.
    pub(super) fn fit(&mut self, rng: &mut ChaCha8Rng, is_late: &impl Fn() -> bool) -> Option<u64> {
        let (best, within) = (self.best.as_ref()?, self.proof.within.as_ref()?);
        let vain = 1.0 + f64::from(self.n_vain_fits) / N_VAIN;
        let share = SHARE / (self.cells.len() as f64 * vain);
        if self.cells.len() > MAX_CELLS || !rng.random_bool(share.min(0.5)) {
            return None;
        }
        let least = self.proof.lower_bound;
        let most = self.proof.until.min(self.proof.shorter(best.makespan));
        let until = most.min(least + rng.random_range(0.0..=1.0) * (most - least));
        let Some(windows) = within.sooner(until, N_ROUNDS, is_late) else {
            self.proof.exclude(until);
            return Some(1);
        };
        let search = DeadlineSearch {
            graph: &self.graph,
            limits: &self.limits,
            until,
            noise: NOISES[rng.random_range(0..NOISES.len())] * self.graph.unit,
            n_fails: N_FAILS,
        };
        let (found, n_choices) = search.order(windows, rng, is_late);
        self.n_vain_fits += 1;
        if let Some(order) = found
            && is_shorter(order.makespan, best.makespan)
        {
            self.best = Some(order);
            self.n_vain_fits = 0;
        }
        Some(n_choices.div_ceil(CHOICES_PER_ORDER))
    }
}
