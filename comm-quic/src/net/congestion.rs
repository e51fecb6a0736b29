//! Congestion control for links that also lose packets at random.
//!
//! Cubic (RFC 9438) takes each loss for a full queue. With 2 % of packets lost at random and a round
//! trip of 100 ms its window stays at a tenth of a megabyte, whatever the link could carry. Here
//! Cubic only learns of a loss that looks like a full queue: the round trip has become longer, or
//! many packets were lost. Without losses, and between machines that are close, this is Cubic.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use quinn_proto::RttEstimator;

/// Machines with a shorter round trip are close: there a loss costs little, and a queue is too short to
/// differ from a busy processor.
const CLOSE: Duration = Duration::from_millis(2);
/// A queue makes the round trip longer than the shortest one by this part of it.
const QUEUED: f64 = 0.5;
/// The share of bytes whose loss always counts.
const MAX_LOST: f64 = 0.1;
/// The share of lost bytes is of the last ones that were sent: half to all of as many.
const COUNTED: u64 = 512 << 10;

/// Makes a controller for each connection.
pub(super) struct Tolerant;

impl ControllerFactory for Tolerant {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let cubic = Arc::new(CubicConfig::default()).build(now, current_mtu);
        Box::new(TolerantCubic { cubic, path: Path::default() })
    }
}

/// Cubic that does not learn of losses at random.
struct TolerantCubic {
    cubic: Box<dyn Controller>,
    path: Path,
}

/// The round trips and losses of a path.
#[derive(Clone, Copy, Default)]
struct Path {
    /// The shortest round trip.
    shortest: Duration,
    /// The round trip of the last packets.
    round_trip: Duration,
    /// Bytes that arrived, and bytes that were lost.
    arrived: u64,
    lost: u64,
}

impl Path {
    /// Counts bytes that arrived or were lost.
    fn count(&mut self, arrived: u64, lost: u64) {
        (self.arrived, self.lost) = (self.arrived + arrived, self.lost + lost);
        if self.arrived + self.lost > COUNTED {
            (self.arrived, self.lost) = (self.arrived / 2, self.lost / 2);
        }
    }

    /// Returns true if a queue may have formed.
    fn is_queued(&self) -> bool {
        self.shortest < CLOSE || self.round_trip > self.shortest.mul_f64(1.0 + QUEUED)
    }

    /// Returns true if so much is lost that a short queue may be full.
    fn loses_much(&self) -> bool {
        let all = self.arrived + self.lost;
        all >= COUNTED / 4 && self.lost as f64 > MAX_LOST * all as f64
    }
}

impl Controller for TolerantCubic {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.cubic.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.path.count(bytes, 0);
        (self.path.shortest, self.path.round_trip) = (rtt.min(), rtt.get());
        self.cubic.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.cubic.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.path.count(0, lost_bytes);
        let is_marked = lost_bytes == 0; // a router marks packets when its queue is long
        let counts = is_marked || self.path.is_queued() || self.path.loses_much();
        if counts || is_persistent_congestion {
            self.cubic.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.cubic.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.cubic.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.cubic.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(TolerantCubic { cubic: self.cubic.clone_box(), path: self.path })
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u64 = 1200;

    fn controller(shortest_ms: u64, round_trip_ms: u64) -> TolerantCubic {
        let now = Instant::now();
        let cubic = Arc::new(CubicConfig::default()).build(now, MTU as u16);
        let [shortest, round_trip] = [shortest_ms, round_trip_ms].map(Duration::from_millis);
        TolerantCubic { cubic, path: Path { shortest, round_trip, ..Path::default() } }
    }

    /// Loses every `nth` of `n` packets, and returns the window before and after.
    fn windows(mut of: TolerantCubic, n: u64, nth: u64) -> (u64, u64) {
        let before = of.window();
        let began = Instant::now();
        for packet in 1..=n {
            let sent = began + Duration::from_millis(packet);
            if packet % nth == 0 {
                of.on_congestion_event(sent, sent, false, MTU);
            } else {
                of.path.count(MTU, 0);
            }
        }
        (before, of.window())
    }

    #[test]
    fn losses_at_random_leave_the_window() {
        let (before, after) = windows(controller(100, 140), 5000, 50);
        assert_eq!(before, after);
    }

    #[test]
    fn losses_with_a_queue_make_the_window_smaller() {
        let (before, after) = windows(controller(100, 160), 50, 50);
        assert!(after < before, "{before} bytes, and then {after}");
    }

    #[test]
    fn every_loss_counts_between_machines_that_are_close() {
        let (before, after) = windows(controller(1, 1), 50, 50);
        assert!(after < before, "{before} bytes, and then {after}");
    }

    /// A queue may be too short to be seen in the round trip.
    #[test]
    fn many_losses_make_the_window_smaller() {
        let (before, after) = windows(controller(100, 100), 5000, 8);
        assert!(after < before, "{before} bytes, and then {after}");
    }

    #[test]
    fn a_connection_that_loses_all_begins_anew() {
        let mut of = controller(100, 100);
        let before = of.window();
        of.on_congestion_event(Instant::now(), Instant::now(), true, MTU);
        assert!(of.window() < before);
    }
}
