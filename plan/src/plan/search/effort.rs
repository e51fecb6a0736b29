//! The time limit and the progress of a choice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use chimera_settings::Config;

use super::searched::is_searched;

/// The time limit of a choice, and its progress callback.
pub struct Effort<'e> {
    /// Time after which the choice returns the best that it has found. The configuration being
    /// tried at that time is completed.
    pub time_limit: Duration,
    /// Called with the number of groups that have been tried, and of all groups.
    pub observe: &'e (dyn Fn(usize, usize) + Sync),
}

impl Effort<'_> {
    /// The effort to find the fastest shapes: a search for their orders takes the other half of the time.
    pub(crate) fn of(&self, said: &Config) -> Effort<'_> {
        let n_parts = if is_searched(said) { 2 } else { 1 };
        Effort { time_limit: self.time_limit / n_parts, observe: self.observe }
    }
}

/// The progress of a choice.
pub(crate) struct Watched<'e> {
    deadline: Option<Instant>,
    observe: &'e (dyn Fn(usize, usize) + Sync),
    n_tried: AtomicUsize,
    n_left_out: AtomicUsize,
}

impl<'e> Watched<'e> {
    pub(crate) fn begin(effort: &Effort<'e>) -> Watched<'e> {
        let (n_tried, n_left_out) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let deadline = Instant::now().checked_add(effort.time_limit);
        Watched { deadline, observe: effort.observe, n_tried, n_left_out }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Reports that one more of `n_groups` groups was tried.
    pub(crate) fn tell(&self, n_groups: usize) {
        (self.observe)(self.n_tried.fetch_add(1, Ordering::Relaxed) + 1, n_groups);
    }

    /// Counts one more configuration that was not tried to its end.
    pub(crate) fn leave_out(&self) {
        self.n_left_out.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn n_left_out(&self) -> usize {
        self.n_left_out.load(Ordering::Relaxed)
    }
}
