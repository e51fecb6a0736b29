//! The clock of a rank with ops that sleep.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chimera_engine::comm::Tag;
use chimera_schedule::ids::BucketId;

/// The clock of one rank, shared by its stages and its end of the transport.
///
/// A thread that sleeps or waits is woken late: by a tenth of a millisecond, or by several if other
/// threads compute on the same cores. If all ops began that much late, a step would become longer
/// for a reason unrelated to its schedule. A rank therefore measures how late it was woken, and
/// subtracts that from the following op or message. Nothing else is subtracted: work between two
/// waits stays in the measured time, and a run that loses time ends late.
#[derive(Default)]
pub(super) struct Pace(Mutex<PaceState>);

#[derive(Default)]
struct PaceState {
    /// Delay of the rank's last wake-up.
    late: Duration,
    /// The message that the rank waits for, and the start of the wait.
    awaited: Option<(Tag, Instant)>,
    /// Start and end of the calls of stages, by this clock.
    calls: Vec<(Instant, Instant)>,
    /// Start and end of the gradient reductions that take time.
    reductions: Vec<(BucketId, Instant, Instant)>,
}

impl Pace {
    /// The present time, as if the rank had been woken in time.
    pub(super) fn now(&self) -> Instant {
        self.state().now()
    }

    /// Sleeps for the duration of a call of a stage.
    pub(super) fn work(&self, takes: Duration) {
        let start = self.now();
        let end = start + takes;
        if !takes.is_zero() {
            self.sleep_until(end);
        }
        self.state().calls.push((start, end));
    }

    /// Start and end of the calls of stages since the last time this was called, by this clock.
    pub(super) fn take_calls(&self) -> Vec<(Instant, Instant)> {
        std::mem::take(&mut self.state().calls)
    }

    /// Sleeps while a message or the start of a reduction keeps the rank busy.
    pub(super) fn occupy(&self, takes: Duration) {
        if !takes.is_zero() {
            self.sleep_until(self.now() + takes);
        }
    }

    /// Records the start and end of a reduction.
    pub(super) fn note_reduction(&self, bucket: BucketId, begin: Instant, end: Instant) {
        self.state().reductions.push((bucket, begin, end));
    }

    /// Start and end of the reductions since the last time this was called, in the order in which
    /// their ends became known.
    pub(super) fn take_reductions(&self) -> Vec<(BucketId, Instant, Instant)> {
        std::mem::take(&mut self.state().reductions)
    }

    /// Sleeps until `due`, which may have passed.
    pub(super) fn sleep_until(&self, due: Instant) {
        sleep_until(due);
        self.state().late = Instant::now().saturating_duration_since(due);
    }

    /// Begins to wait for a message, unless the rank already waits for it.
    pub(super) fn wait_for(&self, tag: Tag) {
        let mut state = self.state();
        if state.awaited.is_none_or(|(awaited, _)| awaited != tag) {
            state.awaited = Some((tag, state.now()));
        }
    }

    /// Ends the wait for a message that has arrived, and is due at `due`.
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
