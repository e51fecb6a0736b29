//! How long a rank has waited, by the clock.

use std::time::{Duration, Instant};

/// A turn that lasted so much longer than it should is that of a rank that was itself stopped, which is no waiting.
const STOPPED: Duration = Duration::from_secs(1);

/// How long a rank has waited for what it tries again and again.
#[derive(Clone, Copy, Default)]
pub(crate) struct Waited {
    pub(crate) total: Duration,
    /// When it last tried.
    until: Option<Instant>,
}

impl Waited {
    /// Adds a turn that was to last `turn` and ends `now`. It began where the last one ended, the first one at `began`. One that
    /// ends early, as on simulated transports, counts as it was meant.
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

    /// Sleeps last longer than asked for: so do waits that are made of many.
    #[test]
    fn turns_last_as_long_as_the_clock_says() {
        let start = Instant::now();
        let at = |micros| start + Duration::from_micros(micros);
        let mut waited = Waited::default();
        waited.add(TURN, at(0), at(160));
        // What was done between two turns belongs to the wait.
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
