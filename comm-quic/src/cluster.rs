//! Ranks that a launcher has started: each knows its number, where rank 0 is, and a common secret.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::rendezvous::Host;
use crate::{
    Event, Guest, Key, PlaceOf, Quic, QuicError, QuicRendezvous, Seat, Survival, Ticket, Wish, join,
};

/// Time between two lines about ranks that are missing.
const BETWEEN_LINES: Duration = Duration::from_secs(15);

/// Longer than any run.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A rank that has found the others.
enum Found {
    Host(Box<Host>, Vec<Guest>),
    Member(Box<Seat>),
}

/// The place of a process in its job.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The secret of the job: any process that has it can join.
    pub secret: String,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub n_ranks: u32,
    /// Host and port of rank 0.
    pub rendezvous: String,
}

impl Cluster {
    /// Waits for all other ranks, and connects with them. Calls `warn` for each refused connection.
    ///
    /// # Errors
    /// If a rank does not come in time.
    pub fn start(&self, patience: Duration, warn: fn(&str)) -> Result<Quic, QuicError> {
        let began = Instant::now();
        let left = || patience.saturating_sub(began.elapsed());
        match self.find(patience, warn)? {
            Found::Member(seat) => seat.connect(left()),
            Found::Host(host, guests) => host.start(guests, "", Vec::new(), no_files(), left()),
        }
    }

    /// Like [`start`](Cluster::start), for a run that goes on when a rank has died. With `replaces` the
    /// others wait, for `patience` at most, for a process that is started as that rank; otherwise it may
    /// come later.
    ///
    /// # Errors
    /// If a rank does not come in time.
    pub fn meetings(
        &self,
        patience: Duration,
        replaces: bool,
        tell: Arc<dyn Fn(&Event<'_>) + Send + Sync>,
        warn: fn(&str),
    ) -> Result<QuicRendezvous, QuicError> {
        match self.find(patience, warn)? {
            Found::Member(seat) => Ok(seat.meetings()),
            Found::Host(host, guests) => {
                let until = Instant::now() + FOR_EVER;
                let fits = Arc::new(|_, wish: &Wish| match wish.place {
                    Some(_) => Ok(()),
                    None => Err("it names no rank".into()),
                });
                let survival = Survival {
                    replaces,
                    patience,
                    remind: Survival::REMIND,
                    valid: FOR_EVER,
                    until,
                    fits,
                    tell,
                };
                host.meetings((self.n_ranks, guests), "", Vec::new(), no_files(), survival)
            }
        }
    }

    /// Finds rank 0, or waits as rank 0 for all others.
    fn find(&self, patience: Duration, warn: fn(&str)) -> Result<Found, QuicError> {
        let began = Instant::now();
        let left = || patience.saturating_sub(began.elapsed());
        let addresses = self.addresses()?;
        let [host, member] = ["host", "join"].map(|purpose| Key::derived(&self.secret, purpose));
        if self.rank > 0 {
            let host = host.public()?;
            let ticket = Ticket { host, join: member, expires: u64::MAX, addresses, relay: None };
            let wish = Wish { place: Some((self.rank, self.n_ranks)), about: String::new() };
            return Ok(Found::Member(Box::new(join(&ticket, wish, patience, patience, warn)?)));
        }
        let is_v6 = addresses.iter().all(SocketAddr::is_ipv6);
        let any =
            if is_v6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
        let port = addresses.first().map_or(0, SocketAddr::port);
        let mut host = Host::open(SocketAddr::new(any, port), host, &member, None, warn)?;
        let mut guests: BTreeMap<u32, Guest> = BTreeMap::new();
        while guests.len() + 1 < self.n_ranks as usize {
            let next = host.next(left().min(BETWEEN_LINES))?;
            guests.retain(|_, guest| !guest.has_left());
            let Some(guest) = next else {
                if left().is_zero() {
                    return Err(QuicError::Missing {
                        waited_s: patience.as_secs(),
                        missing: format!("no {} came", self.missing(&guests)),
                    });
                }
                let missing = self.missing(&guests);
                warn(&format!("waiting for {missing}, {} s more", left().as_secs()));
                continue;
            };
            match self.refusal(&guest, &guests) {
                Some(reason) => {
                    warn(&format!("refused {}: {reason}", guest.address()));
                    host.refuse(guest, &reason)?;
                }
                None => drop(guest.wish().place.map(|(rank, _)| guests.insert(rank, guest))),
            }
        }
        Ok(Found::Host(Box::new(host), guests.into_values().collect()))
    }

    fn addresses(&self) -> Result<Vec<SocketAddr>, QuicError> {
        let at = &self.rendezvous;
        let found = at.to_socket_addrs().map(|all| all.take(16).collect::<Vec<_>>());
        let unknown = |reason: String| QuicError::Unreachable { at: at.clone(), reason };
        let found = found.map_err(|e| unknown(e.to_string()))?;
        if found.is_empty() { Err(unknown("the name has no address".into())) } else { Ok(found) }
    }

    /// Returns why a machine gets no place, if it gets none.
    fn refusal(&self, guest: &Guest, others: &BTreeMap<u32, Guest>) -> Option<String> {
        let n_ranks = self.n_ranks;
        match guest.wish().place {
            None => Some("it names no rank".into()),
            Some((_, n)) if n != n_ranks => {
                Some(format!("it expects {n} ranks, and rank 0 {n_ranks}"))
            }
            Some((rank, _)) if rank == 0 || rank >= n_ranks => {
                Some(format!("rank {rank} is not one of ranks 1 to {}", n_ranks - 1))
            }
            Some((rank, _)) => others
                .get(&rank)
                .map(|other| format!("rank {rank} is already there, at {}", other.address())),
        }
    }

    /// Lists the ranks that are not there.
    fn missing(&self, guests: &BTreeMap<u32, Guest>) -> String {
        let missing = (1..self.n_ranks).filter(|rank| !guests.contains_key(rank));
        format!("rank {}", missing.map(|rank| rank.to_string()).collect::<Vec<_>>().join(", "))
    }
}

/// Ranks of a cluster share a disk.
fn no_files() -> PlaceOf {
    Arc::new(|_, _: &str| Err("rank 0 takes no files".into()))
}
