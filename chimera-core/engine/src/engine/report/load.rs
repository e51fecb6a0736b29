//! The load of a rank in a step: how busy it was, what it held, and whom it waited for.

use std::collections::BTreeMap;

use chimera_schedule::ids::Rank;

use crate::comm::Traffic;

/// Bytes of a number in a record.
const NUMBER: usize = 8;
/// Numbers of a peer in a record.
const OF_PEER: usize = 5;
/// Numbers of a record besides those of peers.
const OF_ALL: usize = 2;

/// Load of one rank in a step.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Load {
    /// Fraction of the time that was idle.
    pub bubble_ratio: f64,
    /// Bytes of weights, gradients and moments, plus the peak of what is kept for backwards (saved
    /// activations, inputs, deferred weight work).
    pub bytes: u64,
    /// Seconds of waiting for the slowest rank to reach the step sync.
    pub sync_s: f64,
    /// Other waits of the rank, and its links.
    pub waits: Waits,
}

/// Times for which a rank waited, by the clock of its host, and the use of its links.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Waits {
    /// Seconds of waiting for gradient reductions.
    pub reductions_s: f64,
    /// Waits for messages of other ranks, and links to them.
    pub peers: BTreeMap<Rank, Peer>,
}

/// Another rank, as one rank sees it.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Peer {
    /// Seconds of waiting for messages of the peer.
    pub wait_s: f64,
    /// Use of the link to the peer; zeros if the transport does not measure.
    pub traffic: Traffic,
}

impl Waits {
    /// Adds a wait for messages of a rank, or for a gradient reduction.
    pub(crate) fn add(&mut self, from: Option<Rank>, seconds: f64) {
        match from {
            Some(from) => self.peers.entry(from).or_default().wait_s += seconds,
            None => self.reductions_s += seconds,
        }
    }

    /// Adds the use of links.
    pub(crate) fn with(mut self, links: Vec<(Rank, Traffic)>) -> Waits {
        for (to, traffic) in links {
            self.peers.entry(to).or_default().traffic = traffic;
        }
        self
    }

    /// Returns the mean of `n` steps.
    pub(crate) fn per_step(mut self, n: usize) -> Waits {
        let n = n.max(1) as f64;
        self.reductions_s /= n;
        for Peer { wait_s, traffic } in self.peers.values_mut() {
            *wait_s /= n;
            traffic.busy_s /= n;
            traffic.sent_bytes = (traffic.sent_bytes as f64 / n) as u64;
        }
        self
    }

    /// Returns the numbers as they stand in a record.
    pub(crate) fn numbers(&self) -> Vec<f64> {
        let peer = |(rank, Peer { wait_s, traffic }): (&Rank, &Peer)| {
            let Traffic { sent_bytes, busy_s, round_trip_s } = *traffic;
            [f64::from(rank.0), *wait_s, sent_bytes as f64, busy_s, round_trip_s]
        };
        let all = [self.reductions_s, self.peers.len() as f64];
        all.into_iter().chain(self.peers.iter().flat_map(peer)).collect()
    }

    /// Reads the numbers, and returns the bytes after them; `None` if some are missing.
    pub(crate) fn read(bytes: &[u8]) -> Option<(Waits, &[u8])> {
        let (head, rest) = bytes.split_at_checked(OF_ALL * NUMBER)?;
        let [reductions_s, n_peers] = numbers(head)?;
        let n_bytes = (n_peers as usize).checked_mul(OF_PEER * NUMBER)?;
        let (peers, rest) = rest.split_at_checked(n_bytes)?;
        let mut waits = Waits { reductions_s, peers: BTreeMap::new() };
        for peer in peers.chunks(OF_PEER * NUMBER) {
            let [rank, wait_s, sent_bytes, busy_s, round_trip_s] = numbers(peer)?;
            let traffic = Traffic { sent_bytes: sent_bytes as u64, busy_s, round_trip_s };
            waits.peers.insert(Rank(rank as u32), Peer { wait_s, traffic });
        }
        Some((waits, rest))
    }
}

/// Reads as many numbers as the bytes hold.
fn numbers<const N: usize>(bytes: &[u8]) -> Option<[f64; N]> {
    let mut all = bytes.chunks_exact(NUMBER).map(|bytes| bytes.try_into().map(f64::from_le_bytes));
    let mut numbers = [0.0; N];
    for number in &mut numbers {
        *number = all.next()?.ok()?;
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(waits: &Waits) -> Vec<u8> {
        waits.numbers().into_iter().flat_map(f64::to_le_bytes).collect()
    }

    fn waits() -> Waits {
        let mut waits = Waits::default();
        waits.add(Some(Rank(3)), 0.25);
        waits.add(None, 0.5);
        waits.add(Some(Rank(3)), 0.5);
        waits.with(vec![(Rank(1), Traffic { sent_bytes: 9, busy_s: 0.125, round_trip_s: 0.05 })])
    }

    #[test]
    fn waits_survive_the_wire() {
        let mut wire = bytes(&waits());
        wire.extend(b"rest");
        assert_eq!(Waits::read(&wire), Some((waits(), &b"rest"[..])));
        let alone = waits().peers[&Rank(3)];
        assert_eq!((alone.wait_s, alone.traffic), (0.75, Traffic::default()));
    }

    /// The numbers are another rank's.
    #[test]
    fn numbers_that_are_missing_or_too_large_are_refused() {
        let wire = bytes(&waits());
        for n_bytes in 0..wire.len() {
            assert_eq!(Waits::read(&wire[..n_bytes]), None, "{n_bytes} bytes");
        }
        for n_peers in [f64::INFINITY, 1e18, 3.0] {
            let mut wire = wire.clone();
            wire[8..16].copy_from_slice(&n_peers.to_le_bytes());
            assert_eq!(Waits::read(&wire), None, "{n_peers} peers");
        }
    }

    #[test]
    fn a_window_has_the_mean_of_its_steps() {
        let mean = waits().per_step(2);
        assert_eq!((mean.reductions_s, mean.peers[&Rank(3)].wait_s), (0.25, 0.375));
        let link = Traffic { sent_bytes: 4, busy_s: 0.0625, round_trip_s: 0.05 };
        assert_eq!(mean.peers[&Rank(1)].traffic, link);
    }
}
