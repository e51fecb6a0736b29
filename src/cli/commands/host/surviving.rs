//! A host whose run goes on when members leave: its tickets, and the machines that take free places.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chimera_comm_quic::{
    Event, Guest, Host, Key, Pass, PlaceOf, PublicKey, Quic, QuicError, QuicRendezvous, Survival,
    Ticket, Wish,
};
use chimera_core::ids::Rank;

use super::member_list::MemberList;
use super::members::About;
use super::plan::Plan;
use crate::cli::commands::train::ranks::{Begin, Rejoins, tell_of};

/// The tickets of a host, of which one is valid at a time.
pub(super) struct Tickets {
    host: PublicKey,
    addresses: Vec<SocketAddr>,
    relay: Option<Pass>,
    valid: Duration,
    newest: Mutex<(Ticket, Instant)>,
}

/// All that a run of a host begins with.
pub(super) struct Beginning {
    pub(super) guests: Vec<Guest>,
    /// The plan, as members get it.
    pub(super) text: String,
    pub(super) sent: Plan,
    pub(super) tickets: Tickets,
    /// By rank.
    pub(super) devices: Vec<String>,
    pub(super) list: Arc<MemberList>,
}

impl Tickets {
    pub(super) fn new(
        host: PublicKey,
        join: Key,
        addresses: Vec<SocketAddr>,
        relay: Option<Pass>,
        valid: Duration,
    ) -> Tickets {
        let until = Instant::now() + valid;
        let expires = Ticket::expiry(valid);
        let ticket = Ticket { host, join, expires, addresses: addresses.clone(), relay };
        Tickets { host, addresses, relay, valid, newest: Mutex::new((ticket, until)) }
    }

    /// The command that joins.
    pub(super) fn line(&self) -> String {
        format!("chimera join {}", self.newest().0)
    }

    /// A ticket to this host for whoever has a key, without an end.
    pub(super) fn of(&self, join: &Key) -> String {
        self.with(join.clone(), u64::MAX).to_string()
    }

    fn with(&self, join: Key, expires: u64) -> Ticket {
        let (host, addresses, relay) = (self.host, self.addresses.clone(), self.relay);
        Ticket { host, join, expires, addresses, relay }
    }

    /// The end of the newest ticket.
    pub(super) fn until(&self) -> Instant {
        self.newest().1
    }

    fn newest(&self) -> std::sync::MutexGuard<'_, (Ticket, Instant)> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a ticket with another key.
    fn renew(&self, join: Key) {
        let ticket = self.with(join, Ticket::expiry(self.valid));
        *self.newest() = (ticket, Instant::now() + self.valid);
    }
}

impl Begin for Beginning {
    fn start(self, host: Host, place_of: PlaceOf, patience: Duration) -> Result<Quic, QuicError> {
        host.start(self.guests, &self.text, self.sent.files, place_of, patience)
    }

    fn meetings(
        self,
        host: Host,
        place_of: PlaceOf,
        replaces: bool,
        rejoins: Rejoins,
    ) -> Result<QuicRendezvous, QuicError> {
        let Beginning { guests, text, sent, tickets, devices, list } = self;
        let n_ranks = devices.len() as u32;
        let fits = move |rank: Rank, wish: &Wish| {
            let (brings, needs) = (About::of(wish).device, &devices[rank.index()]);
            if brings == *needs {
                return Ok(());
            }
            Err(format!("it brings {brings}, and {rank} trains on {needs}"))
        };
        let (valid, until) = (tickets.valid, tickets.until());
        let tell = rejoins.told(move |event: &Event<'_>| {
            if let Event::Missing { key: Some(key), .. } = event {
                tickets.renew((*key).clone());
            }
            if let Event::Came(rank, wish) = event {
                list.came(*rank, wish);
            }
            tell_of(event, || tickets.line());
        });
        let survival = Survival {
            replaces,
            patience: valid,
            remind: Survival::REMIND,
            valid,
            until,
            fits: Arc::new(fits),
            tell,
        };
        host.meetings((n_ranks, guests), &text, sent.files, place_of, survival)
    }
}
