//! The address and the keys by which members come to a host, also when they come again.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use chimera_comm_quic::{Guest, Host, Key, Pass};

use crate::cli::parts::terminal::console::warn;

/// Time for the system to free the port of a run that has ended.
const TO_FREE: Duration = Duration::from_secs(10);
/// Time between two tries.
const BETWEEN: Duration = Duration::from_millis(100);

/// The way into a host.
pub(super) struct Door {
    /// The host's key.
    pub(super) key: Key,
    /// The key of those who may come.
    pub(super) join: Key,
    /// Whether the members of a run come again. Only they have the key.
    pub(super) is_again: bool,
    /// The session at a relay.
    pub(super) relay: Option<Pass>,
    at: SocketAddr,
}

impl Door {
    pub(super) fn first(listen: Option<SocketAddr>, relay: Option<Pass>) -> Result<Door> {
        let at = listen.unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into());
        Ok(Door { key: Key::random()?, join: Key::random()?, is_again: false, relay, at })
    }

    /// Returns the door for the members of a run that goes on, at the address of `host`.
    pub(super) fn next(&self, host: &Host) -> Result<Door> {
        let (key, join, relay) = (self.key.clone(), Key::random()?, self.relay);
        Ok(Door { key, join, is_again: true, relay, at: host.address()? })
    }

    /// Listens. The port of a run that goes on may not be free at once.
    pub(super) fn open(&self) -> Result<Host> {
        let deadline = Instant::now() + TO_FREE;
        loop {
            match Host::open(self.at, self.key.clone(), &self.join, self.relay.as_ref(), warn) {
                Err(_) if self.is_again && Instant::now() < deadline => sleep(BETWEEN),
                host => return Ok(host?),
            }
        }
    }
}

/// Returns true if a machine was this rank before.
pub(super) fn is_of(guest: &Guest, rank: u32) -> bool {
    guest.wish().place.is_some_and(|(wanted, _)| wanted == rank)
}

/// Orders machines by rank: those that come again first get the ranks that they had.
pub(super) fn seated(guests: Vec<Guest>) -> Vec<Guest> {
    let wanted = |guest: &Guest| guest.wish().place.map(|(rank, _)| rank);
    in_order(guests, wanted)
}

/// Orders things by the number from 1 on that each wants, and the others into the gaps.
fn in_order<T>(things: Vec<T>, wanted: impl Fn(&T) -> Option<u32>) -> Vec<T> {
    let mut places: Vec<Option<T>> = things.iter().map(|_| None).collect();
    let mut others = Vec::new();
    for thing in things {
        let nth = wanted(&thing).and_then(|rank| (rank as usize).checked_sub(1));
        match nth.and_then(|nth| places.get_mut(nth)).filter(|place| place.is_none()) {
            Some(place) => *place = Some(thing),
            None => others.push(thing),
        }
    }
    let mut others = others.into_iter();
    places.into_iter().filter_map(|place| place.or_else(|| others.next())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_get_the_ranks_that_they_had() {
        let ordered = |wishes: &[Option<u32>]| -> Vec<usize> {
            let things = wishes.iter().copied().enumerate().collect();
            in_order(things, |(_, rank)| *rank).into_iter().map(|(nth, _)| nth).collect()
        };
        assert_eq!(ordered(&[None, None, None]), [0, 1, 2]);
        assert_eq!(ordered(&[Some(3), Some(1), Some(2)]), [1, 2, 0]);
        assert_eq!(ordered(&[Some(2), None, Some(2)]), [1, 0, 2]);
        assert_eq!(ordered(&[Some(0), Some(9), Some(1)]), [2, 0, 1]);
    }
}
