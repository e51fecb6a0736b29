//! The metrics of each rank in a step.

use chimera_core::engine::{Load, Peer};
use chimera_core::ids::Rank;
use serde::{Deserialize, Serialize};

/// The metrics of a step for one rank. Seconds are rounded to microseconds.
#[derive(Serialize, Deserialize, Clone, PartialEq, Default, Debug)]
pub struct RankMetrics {
    /// Idle time divided by the time of the step.
    pub bubble_ratio: f64,
    /// Peak bytes of weights, gradients, moments and saved activations.
    pub bytes: u64,
    /// Seconds of waiting for gradient reductions.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reductions_s: f64,
    /// Seconds of waiting for the slowest rank at the step sync.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sync_s: f64,
    /// Ranks that this rank waited for, or reached over a measured link.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<PeerMetrics>,
}

/// The metrics of a step for one rank, as far as they concern another one.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
pub struct PeerMetrics {
    /// The other rank.
    pub rank: Rank,
    /// Seconds of waiting for messages of the other rank.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub wait_s: f64,
    /// Bytes sent to the other rank, if the transport counts them.
    #[serde(default, skip_serializing_if = "is_none")]
    pub sent_bytes: u64,
    /// Seconds in which sent bytes were under way.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub busy_s: f64,
    /// The shortest round trip to the other rank so far, in seconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub round_trip_s: f64,
}

impl RankMetrics {
    pub(super) fn of(load: &Load) -> RankMetrics {
        RankMetrics {
            bubble_ratio: load.bubble_ratio,
            bytes: load.bytes,
            reductions_s: micros(load.waits.reductions_s),
            sync_s: micros(load.sync_s),
            peers: load.waits.peers.iter().map(PeerMetrics::of).collect(),
        }
    }
}

impl PeerMetrics {
    fn of((rank, Peer { wait_s, traffic }): (&Rank, &Peer)) -> PeerMetrics {
        PeerMetrics {
            rank: *rank,
            wait_s: micros(*wait_s),
            sent_bytes: traffic.sent_bytes,
            busy_s: micros(traffic.busy_s),
            round_trip_s: micros(traffic.round_trip_s),
        }
    }
}

/// Rounds seconds: a line has numbers of all ranks, and should stay short. Another rank may have sent
/// anything, and JSON has no infinity.
fn micros(seconds: f64) -> f64 {
    let rounded = (seconds * 1e6).round() / 1e6;
    if rounded.is_finite() { rounded } else { 0.0 }
}

fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

fn is_none(bytes: &u64) -> bool {
    *bytes == 0
}

#[cfg(test)]
mod tests {
    use chimera_core::comm::Traffic;
    use chimera_core::engine::Waits;

    use super::*;

    #[test]
    fn only_what_was_measured_is_written() {
        let traffic = Traffic { sent_bytes: 70, busy_s: 0.25, round_trip_s: 1e-4 };
        let peers = [
            (Rank(0), Peer { wait_s: 0.012_345_67, ..Peer::default() }),
            (Rank(2), Peer { wait_s: 0.0, traffic }),
        ];
        let waits = Waits { reductions_s: 0.5, peers: peers.into() };
        let load = Load { bubble_ratio: 0.25, bytes: 7, sync_s: f64::NAN, waits };
        let metrics = RankMetrics::of(&load);
        let text = serde_json::to_string(&metrics).unwrap();
        assert_eq!(
            text,
            r#"{"bubble_ratio":0.25,"bytes":7,"reductions_s":0.5,"peers":[{"rank":0,"wait_s":0.012346},{"rank":2,"sent_bytes":70,"busy_s":0.25,"round_trip_s":0.0001}]}"#
        );
        assert_eq!(serde_json::from_str::<RankMetrics>(&text).unwrap(), metrics);
    }
}
