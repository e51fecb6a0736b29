//! Time that a rank has waited, by the clock.

use std::time::{Duration, Instant};

/// Excess length of a turn that shows that the rank itself was stopped, and did not wait.
const STOPPED: Duration = Duration::from_secs(1);

/// Time that a rank has waited for something that it tries repeatedly.
#[derive(Clone, Copy, Default)]
pub(crate) struct Waited {
    pub(crate) total: Duration,
    /// Time of the last attempt.
    until: Option<Instant>,
}

impl Waited {
    /// Adds a turn that was meant to last `turn` and ends `now`. It began at the end of the
    /// previous turn, or at `began` for the first. A turn that ends early, as on simulated
    /// transports, counts in full.
    pub(crate) fn add(&mut self, turn: Duration, began: Instant, now: Instant) {
        let lasted = now.saturating_duration_since(self.until.unwrap_or(began));
        let was_stopped = lasted > turn.saturating_add(STOPPED);
        self.total += if was_stopped { turn } else { lasted.max(turn) };
        self.until = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Duration = Duration::from_micros(100);
    const LONG: Duration = Duration::from_millis(50);

    /// Sleeps last longer than requested, and so do waits that consist of many.
    #[test]
    fn turns_last_as_long_as_the_clock_says() {
        let start = Instant::now();
        let at = |micros| start + Duration::from_micros(micros);
        let mut waited = Waited::default();
        waited.add(TURN, at(0), at(160));
        // Work between two turns belongs to the wait.
        waited.add(TURN, at(200), at(400));
        assert_eq!(waited.total, Duration::from_micros(400));
    }

    #[test]
    fn a_rank_that_was_stopped_has_not_waited() {
        let start = Instant::now();
        let mut waited = Waited::default();
        waited.add(TURN, start, start + Duration::from_secs(30));
        assert_eq!(waited.total, TURN);
        waited.add(LONG, start, start + Duration::from_secs(30));
        assert_eq!(waited.total, TURN + LONG, "what ends early counts as it was meant");
    }
}
