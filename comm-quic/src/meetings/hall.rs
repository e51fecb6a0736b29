//! The places of a run and their machines, as the threads of the host share them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chimera_core::ids::Rank;
use quinn::{Connection, ConnectionError};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::{Event, Survival, is_end};
use crate::dial::Member;
use crate::files::{Comer, Shelf};
use crate::guest::{Guest, Place};
use crate::net::IDLE;
use crate::probe::watch;
use crate::{PublicKey, Wish};

/// The most machines that wait for a free place.
const MAX_WAITING: usize = 16;

/// The places of a run. Rank 0 is the host's.
pub(super) struct Hall {
    pub(super) n_ranks: u32,
    pub(super) plan: String,
    pub(super) shelf: Arc<Shelf>,
    pub(super) survival: Survival,
    pub(super) warn: fn(&str),
    state: Mutex<State>,
    /// Wakes the host when a machine comes or leaves.
    pub(super) changed: Notify,
}

struct State {
    seats: BTreeMap<Rank, Seated>,
    /// Machines that wait for a place.
    waiting: Vec<Guest>,
    /// Places given so far.
    n_given: u64,
    /// Whether the host holds a meeting.
    is_meeting: bool,
    /// Whether some rank has nothing left to train, so that nobody else is needed.
    is_over: bool,
    /// The key that joining machines must have, and its expiry.
    join: (PublicKey, Instant),
}

/// A machine that has a place.
struct Seated {
    /// Number of the machine among all that have had a place.
    id: u64,
    member: Member,
    connection: Connection,
    /// Rank of the machine in the transport of the last meeting.
    index: Arc<AtomicU32>,
    has_met: bool,
    /// The machine's wish to meet.
    comer: Option<Comer>,
}

/// A member that has come to a meeting.
pub(super) struct Arrived {
    pub(super) rank: Rank,
    pub(super) member: Member,
    pub(super) comer: Comer,
}

/// Members that have come to a meeting.
pub(super) enum Gathered {
    /// Not all needed machines have come. These places are free, if only machines for them are
    /// missing.
    Waits(Vec<Rank>),
    /// All who are needed.
    Ready(Vec<Arrived>),
    /// All needed machines have come, and some rank has nothing left to train.
    Over(Vec<Arrived>),
}

impl Hall {
    pub(super) fn new(
        (n_ranks, plan): (u32, String),
        shelf: Shelf,
        survival: Survival,
        join: PublicKey,
        warn: fn(&str),
    ) -> Arc<Hall> {
        let state = State {
            seats: BTreeMap::new(),
            waiting: Vec::new(),
            n_given: 0,
            is_meeting: true,
            is_over: false,
            join: (join, Instant::from_std(survival.until)),
        };
        let (shelf, state, changed) = (Arc::new(shelf), Mutex::new(state), Notify::new());
        Arc::new(Hall { n_ranks, plan, shelf, survival, warn, state, changed })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives machines that ask for a place, until the socket closes.
    pub(super) async fn receive(self: Arc<Hall>, mut joining: mpsc::Receiver<Guest>) {
        while let Some(guest) = joining.recv().await {
            tokio::spawn(Arc::clone(&self).welcome(guest));
        }
    }

    /// Gives a machine a free place, or lets it wait for one.
    async fn welcome(self: Arc<Hall>, guest: Guest) {
        if let Some(reason) = self.refusal(&guest) {
            (self.warn)(&format!("refused {}: {reason}", guest.address()));
            return guest.refuse(&reason).await;
        }
        let wish = guest.wish().clone();
        let is_placed = {
            let mut state = self.state();
            let n_given = state.n_given;
            state.waiting.push(guest);
            self.place(&mut state);
            state.n_given > n_given
        };
        if !is_placed {
            (self.survival.tell)(&Event::Waits(&wish));
        }
    }

    fn refusal(&self, guest: &Guest) -> Option<String> {
        let state = self.state();
        let (join, until) = state.join;
        if guest.ticket != join || Instant::now() >= until {
            return Some("the ticket has expired: ask the host for a new one".into());
        }
        if state.waiting.len() >= MAX_WAITING {
            return Some("all places are taken, and others wait already".into());
        }
        drop(state);
        let mut reasons = (1..self.n_ranks).map(|rank| self.unfit(Rank(rank), guest.wish()));
        let first = reasons.next().flatten()?;
        reasons.all(|reason| reason.is_some()).then_some(first)
    }

    /// Returns the reason why a machine cannot have the place of a rank, if there is one.
    fn unfit(&self, rank: Rank, wish: &Wish) -> Option<String> {
        match wish.place {
            Some((_, n)) if n != self.n_ranks => {
                Some(format!("it expects {n} ranks, and rank 0 {}", self.n_ranks))
            }
            Some((wanted, _)) if wanted != rank.0 => Some(format!("it is not {rank}")),
            _ => (self.survival.fits)(rank, wish).err(),
        }
    }

    /// Gives all free places for which somebody waits.
    fn place(self: &Arc<Hall>, state: &mut State) {
        state.waiting.retain(|guest| !guest.has_left());
        if state.is_over {
            return;
        }
        for rank in (1..self.n_ranks).map(Rank) {
            if state.seats.contains_key(&rank) {
                continue;
            }
            let fits = |guest: &Guest| self.unfit(rank, guest.wish()).is_none();
            if let Some(nth) = state.waiting.iter().position(fits) {
                let guest = state.waiting.remove(nth);
                (self.survival.tell)(&Event::Came(rank, guest.wish()));
                self.seat(state, rank, guest);
            }
        }
    }

    /// Gives a machine the place of a rank. Call it within the runtime.
    pub(super) fn seat_first(self: &Arc<Hall>, rank: Rank, guest: Guest) {
        self.seat(&mut self.state(), rank, guest);
    }

    fn seat(self: &Arc<Hall>, state: &mut State, rank: Rank, guest: Guest) {
        state.n_given += 1;
        let (id, index) = (state.n_given, Arc::new(AtomicU32::new(rank.0)));
        let connection = guest.connection().clone();
        let seated = Seated {
            id,
            member: guest.member(),
            connection: connection.clone(),
            index: Arc::clone(&index),
            has_met: false,
            comer: None,
        };
        state.seats.insert(rank, seated);
        let (hall, shelf) = (Arc::clone(self), Arc::clone(&self.shelf));
        let come = move |comer| hall.come(rank, id, comer);
        let place = Place { rank: rank.0, n_ranks: self.n_ranks, plan: self.plan.clone() };
        tokio::spawn(guest.seat(place, Vec::new(), index, shelf, come));
        tokio::spawn(watch(connection.clone()));
        let hall = Arc::clone(self);
        tokio::spawn(async move {
            let why = connection.closed().await;
            hall.leaves(rank, id, &why);
        });
    }

    /// Takes a member's wish to meet.
    fn come(&self, rank: Rank, id: u64, comer: Comer) {
        let mut state = self.state();
        let is_meeting = state.is_meeting;
        let Some(seated) = state.seats.get_mut(&rank).filter(|seated| seated.id == id) else {
            return;
        };
        seated.comer = Some(comer);
        let is_new = !seated.has_met;
        drop(state);
        if is_new && !is_meeting {
            (self.survival.tell)(&Event::Ready(rank));
        }
        self.changed.notify_one();
    }

    /// Frees the place of a member whose connection has ended.
    fn leaves(self: &Arc<Hall>, rank: Rank, id: u64, why: &ConnectionError) {
        let mut state = self.state();
        if state.seats.get(&rank).is_none_or(|seated| seated.id != id) {
            return;
        }
        state.seats.remove(&rank);
        if !is_end(why) {
            (self.survival.tell)(&Event::Left(rank, &in_words(why)));
        }
        self.place(&mut state);
        drop(state);
        self.changed.notify_one();
    }

    /// Drops members, since others do not reach them.
    pub(super) fn drop_members(self: &Arc<Hall>, ranks: &[Rank]) {
        let mut state = self.state();
        for rank in ranks {
            if let Some(seated) = state.seats.remove(rank) {
                let why = "another member cannot reach it";
                seated.connection.close(4u8.into(), why.as_bytes());
                (self.survival.tell)(&Event::Left(*rank, why));
            }
        }
        self.place(&mut state);
    }

    /// Takes those who have come, if they are enough. `needs_all` is whether all places must be taken.
    pub(super) fn gathered(&self, goes_on: bool, needs_all: bool) -> Gathered {
        let mut state = self.state();
        state.is_meeting = true;
        let seats = &mut state.seats;
        if seats.values().any(|seated| seated.has_met && seated.comer.is_none()) {
            return Gathered::Waits(Vec::new());
        }
        let is_done = |seated: &Seated| seated.comer.as_ref().is_some_and(|comer| !comer.goes_on);
        let is_over = !goes_on || seats.values().any(is_done);
        if !is_over && needs_all {
            let free = free(self.n_ranks, seats);
            if !free.is_empty() || seats.values().any(|seated| seated.comer.is_none()) {
                return Gathered::Waits(free);
            }
        }
        let arrived = seats.iter_mut().filter_map(|(rank, seated)| {
            let (rank, member) = (*rank, seated.member.clone());
            seated.comer.take().map(|comer| Arrived { rank, member, comer })
        });
        let arrived = arrived.collect();
        state.is_over = is_over;
        if is_over { Gathered::Over(arrived) } else { Gathered::Ready(arrived) }
    }

    /// Waits until one of these members has no place any more.
    pub(super) async fn lost(&self, ranks: &[Rank]) {
        loop {
            {
                let state = self.state();
                if ranks.iter().any(|rank| rank.0 > 0 && !state.seats.contains_key(rank)) {
                    return;
                }
            }
            self.changed.notified().await;
        }
    }

    /// Notes that these ranks have met and train now.
    pub(super) fn met(&self, present: &[Rank]) {
        let mut state = self.state();
        state.is_meeting = false;
        for (index, rank) in (0..).zip(present) {
            if let Some(seated) = state.seats.get_mut(rank) {
                seated.has_met = true;
                seated.index.store(index, Ordering::Relaxed);
            }
        }
        // A newcomer may have come too late for this meeting.
        let late = |(rank, seated): (&Rank, &Seated)| seated.comer.is_some().then_some(*rank);
        let late: Vec<Rank> = state.seats.iter().filter_map(late).collect();
        drop(state);
        late.iter().for_each(|rank| (self.survival.tell)(&Event::Ready(*rank)));
    }

    /// Returns true if the key of those who join is too old.
    pub(super) fn has_expired(&self) -> bool {
        Instant::now() >= self.state().join.1
    }

    /// Admits those who have another key from now on.
    pub(super) fn renew(&self, join: PublicKey, valid: Duration) {
        self.state().join = (join, Instant::now() + valid);
    }

    /// Returns the key of those who may join.
    pub(super) fn join(&self) -> PublicKey {
        self.state().join.0
    }

    /// Returns the ranks whose places are free.
    pub(super) fn free(&self) -> Vec<Rank> {
        free(self.n_ranks, &self.state().seats)
    }

    /// Takes the connections of all members, and those who wait for a place.
    pub(super) fn close(&self) -> (Vec<Connection>, Vec<Guest>) {
        let mut state = self.state();
        let seats = std::mem::take(&mut state.seats);
        let connections = seats.into_values().map(|seated| seated.connection).collect();
        (connections, std::mem::take(&mut state.waiting))
    }
}

/// Says how a connection has ended, for the user of the host.
fn in_words(why: &ConnectionError) -> String {
    match why {
        ConnectionError::LocallyClosed => "its process has ended".into(),
        ConnectionError::TimedOut => {
            format!("nothing was heard of it for {} s", IDLE.as_secs())
        }
        other => other.to_string(),
    }
}

fn free(n_ranks: u32, seats: &BTreeMap<Rank, Seated>) -> Vec<Rank> {
    (1..n_ranks).map(Rank).filter(|rank| !seats.contains_key(rank)).collect()
}
