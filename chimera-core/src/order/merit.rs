//! Which of two orders is the better one.

use crate::costs::is_shorter;
use crate::residuals::ROUNDING;

/// What an order is judged by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Merit {
    pub(crate) makespan: f64,
    /// The most micro-batches whose residuals any worker holds.
    pub(crate) peak: f64,
}

impl Merit {
    /// That of no order at all.
    pub(crate) const NONE: Merit = Merit { makespan: f64::INFINITY, peak: f64::INFINITY };

    /// Whether it is shorter, or as short and holds less, by more than rounding.
    pub(crate) fn is_better_than(&self, other: &Merit) -> bool {
        let is_longer = is_shorter(other.makespan, self.makespan);
        let holds_less = self.peak < other.peak - ROUNDING;
        is_shorter(self.makespan, other.makespan) || !is_longer && holds_less
    }
}
