//! The objective by which orders are compared.

use crate::activation_memory::ROUNDING;
use crate::costs::is_shorter;

/// The objective of an order.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct OrderObjective {
    pub(crate) makespan: f64,
    /// The most micro-batches with activations that any worker holds.
    pub(crate) peak: f64,
    /// The most checkpointed inputs that any worker holds, in micro-batches. It comes last, since
    /// their bytes relative to saved activations depend on the model.
    pub(crate) kept: f64,
}

impl OrderObjective {
    /// Objective value of an empty order.
    pub(crate) const NONE: OrderObjective =
        OrderObjective { makespan: f64::INFINITY, peak: f64::INFINITY, kept: f64::INFINITY };

    /// Returns true if it is shorter, or as short and holds fewer saved activations, or as many and
    /// keeps less, by more than rounding.
    pub(crate) fn is_better_than(&self, other: &OrderObjective) -> bool {
        if is_shorter(self.makespan, other.makespan) || is_shorter(other.makespan, self.makespan) {
            return self.makespan < other.makespan;
        }
        let held = [(self.peak, other.peak), (self.kept, other.kept)];
        let differing = held.into_iter().find(|(own, others)| (own - others).abs() > ROUNDING);
        differing.is_some_and(|(own, others)| own < others)
    }
}
