//! Measures how a connection is used.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use chimera_core::comm::Traffic;

/// Counts the frames that are sent over a connection, and the time in which some were under way.
#[derive(Default)]
pub(crate) struct Meter(Mutex<Usage>);

#[derive(Default)]
struct Usage {
    sent_bytes: u64,
    busy: Duration,
    /// Frames whose receiver does not have them yet.
    n_under_way: usize,
    /// The start of the time with frames under way that is not counted yet.
    since: Option<Instant>,
}

impl Meter {
    /// Counts a frame that leaves now.
    pub(crate) fn begin(&self, n_bytes: usize, now: Instant) {
        let mut usage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        usage.sent_bytes += n_bytes as u64;
        usage.n_under_way += 1;
        usage.since.get_or_insert(now);
    }

    /// Counts that a frame has arrived, or is lost with its connection.
    pub(crate) fn end(&self, now: Instant) {
        let mut usage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        usage.count(now);
        usage.n_under_way -= 1;
        usage.since = (usage.n_under_way > 0).then_some(now);
    }

    /// Returns the use since the last call; `None` if nothing was sent or under way.
    pub(crate) fn take(&self, now: Instant, round_trip: Duration) -> Option<Traffic> {
        let mut usage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        usage.count(now);
        let (sent_bytes, busy_s) = (usage.sent_bytes, usage.busy.as_secs_f64());
        (usage.sent_bytes, usage.busy) = (0, Duration::ZERO);
        let round_trip_s = round_trip.as_secs_f64();
        (busy_s > 0.0).then_some(Traffic { sent_bytes, busy_s, round_trip_s })
    }
}

impl Usage {
    fn count(&mut self, now: Instant) {
        if let Some(since) = &mut self.since {
            self.busy += now.saturating_duration_since(*since);
            *since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_once_while_frames_are_under_way() {
        let (meter, start) = (Meter::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let take = |ms| {
            let traffic = meter.take(at(ms), Duration::from_millis(2))?;
            assert_eq!(traffic.round_trip_s, 0.002);
            Some((traffic.sent_bytes, (1e3 * traffic.busy_s).round()))
        };
        assert_eq!(take(0), None);
        meter.begin(10, at(10));
        meter.begin(20, at(15));
        meter.end(at(30));
        assert_eq!(take(35), Some((30, 25.0)), "one is still under way");
        meter.end(at(40));
        assert_eq!(take(100), Some((0, 5.0)), "it arrived in the next step");
        assert_eq!(take(200), None);
    }
}
