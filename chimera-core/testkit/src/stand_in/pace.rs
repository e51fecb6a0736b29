//! The time of a rank whose ops sleep.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chimera_engine::comm::Tag;
use chimera_schedule::ids::BucketId;

/// The clock of one rank, shared by its stages and its end of the transport.
///
/// A thread that sleeps or waits is woken late: by a tenth of a millisecond, or by several where others compute on the same
/// cores. Ops that all began late by that would make a step longer, which says nothing about its schedule. So a rank knows
/// how late it was woken, and takes that off the op or the message that follows. Only that is taken off: what the rank
/// does between two waits stays in the measured time, and a run that falls behind ends late.
#[derive(Default)]
pub(super) struct Pace(Mutex<PaceState>);

#[derive(Default)]
struct PaceState {
    /// How long after its time the rank was woken.
    late: Duration,
    /// The message that the rank waits for, and since when.
    awaited: Option<(Tag, Instant)>,
    /// Start and end of the calls of stages, by this clock.
    calls: Vec<(Instant, Instant)>,
    /// Begin and end of the gradient reductions that take time.
    reductions: Vec<(BucketId, Instant, Instant)>,
}

impl Pace {
    /// The time that it would be if the rank had been woken in time.
    pub(super) fn now(&self) -> Instant {
        self.state().now()
    }

    /// Sleeps for as long as a call of a stage takes.
    pub(super) fn work(&self, takes: Duration) {
        let start = self.now();
        let end = start + takes;
        if !takes.is_zero() {
            self.sleep_until(end);
        }
        self.state().calls.push((start, end));
    }

    /// Start and end of the calls of stages since this was last asked, by this clock.
    pub(super) fn take_calls(&self) -> Vec<(Instant, Instant)> {
        std::mem::take(&mut self.state().calls)
    }

    /// Sleeps while a message or the start of a reduction leaves the rank nothing else to do.
    pub(super) fn occupy(&self, takes: Duration) {
        if !takes.is_zero() {
            self.sleep_until(self.now() + takes);
        }
    }

    /// Notes when a reduction was under way.
    pub(super) fn note_reduction(&self, bucket: BucketId, begin: Instant, end: Instant) {
        self.state().reductions.push((bucket, begin, end));
    }

    /// Begin and end of the reductions since this was last asked, in the order of their ends being known.
    pub(super) fn take_reductions(&self) -> Vec<(BucketId, Instant, Instant)> {
        std::mem::take(&mut self.state().reductions)
    }

    /// Sleeps until `due`, which may be past.
    pub(super) fn sleep_until(&self, due: Instant) {
        sleep_until(due);
        self.state().late = Instant::now().saturating_duration_since(due);
    }

    /// Begins to wait for a message, if the rank does not wait for it yet.
    pub(super) fn wait_for(&self, tag: Tag) {
        let mut state = self.state();
        if state.awaited.is_none_or(|(awaited, _)| awaited != tag) {
            state.awaited = Some((tag, state.now()));
        }
    }

    /// Ends the wait for a message that is here, and due at `due`.
    pub(super) fn receive(&self, due: Instant) {
        let since = self.state().awaited.take().map(|(_, since)| since);
        self.sleep_until(since.map_or(due, |since| since.max(due)));
    }

    fn state(&self) -> MutexGuard<'_, PaceState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PaceState {
    fn now(&self) -> Instant {
        let now = Instant::now();
        now.checked_sub(self.late).unwrap_or(now)
    }
}

fn sleep_until(due: Instant) {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left);
    }
}
