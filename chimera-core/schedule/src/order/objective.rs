//! Which of two orders is the better one.

use crate::activation_memory::ROUNDING;
use crate::costs::is_shorter;

/// What an order is judged by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct OrderObjective {
    pub(crate) makespan: f64,
    /// The most micro-batches whose activations any worker holds.
    pub(crate) peak: f64,
    /// The most micro-batches of which any worker holds what forwards keep for recomputations. It says
    /// nothing of bytes beside saved activations, which hang on the model, and so comes last.
    pub(crate) kept: f64,
}

impl OrderObjective {
    /// Objective value of an empty order.
    pub(crate) const NONE: OrderObjective =
        OrderObjective { makespan: f64::INFINITY, peak: f64::INFINITY, kept: f64::INFINITY };

    /// Whether it is shorter, or as short and holds fewer saved activations, or as many and keeps less, by more
    /// than rounding.
    pub(crate) fn is_better_than(&self, other: &OrderObjective) -> bool {
        if is_shorter(self.makespan, other.makespan) || is_shorter(other.makespan, self.makespan) {
            return self.makespan < other.makespan;
        }
        let held = [(self.peak, other.peak), (self.kept, other.kept)];
        let differing = held.into_iter().find(|(own, others)| (own - others).abs() > ROUNDING);
        differing.is_some_and(|(own, others)| own < others)
    }
}
