//! The host's side of meetings.

use std::mem::replace;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chimera_core::ids::{Rank, listed};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::hall::{Arrived, Gathered, Hall};
use super::vacancy::Vacancy;
use super::{
    Event, HostResult, Invitation, Met, QuicRendezvous, Side, Survival, TO_MEET, deadline,
};
use crate::dial::Member;
use crate::files::{PlaceOf, Shelf};
use crate::mesh::{self, Mesh, Socket};
use crate::message::{hear, tell};
use crate::net::runtime;
use crate::tls::Purpose;
use crate::{Guest, Host, Key, QuicError};

/// Bytes of a member's report.
const MAX_REPORT: usize = 1 << 12;
/// Time beyond the limit for a report to arrive.
const TO_REPORT: Duration = Duration::from_secs(5);
/// Time for members to leave at the end.
const TO_LEAVE: Duration = Duration::from_secs(2);

/// The meetings, as the host holds them.
pub(super) struct HostMeetings {
    socket: Socket,
    own: Member,
    hall: Arc<Hall>,
    n_meetings: u64,
    has_met: bool,
}

impl Host {
    /// Like [`start`](Host::start), for a run of `n_ranks` that goes on when a member has died. These
    /// machines are ranks of the first meeting, each with its wish's rank or else in order; others may
    /// come later.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn meetings(
        mut self,
        (n_ranks, guests): (u32, Vec<Guest>),
        plan: &str,
        files: Vec<PathBuf>,
        place_of: PlaceOf,
        survival: Survival,
    ) -> Result<QuicRendezvous, QuicError> {
        let shelf = Shelf::of(files, place_of)?;
        let own = Member { key: self.socket.key.public()?, addresses: Vec::new() };
        let hall = Hall::new((n_ranks, plan.into()), shelf, survival, self.join, self.warn);
        let _within = runtime()?.enter();
        for (nth, guest) in (1..).zip(guests) {
            let rank = guest.wish().place.map_or(nth, |(rank, _)| rank);
            hall.seat_first(Rank(rank), guest);
        }
        let joining = replace(&mut self.socket.joining, mpsc::channel(1).1);
        tokio::spawn(Arc::clone(&hall).receive(joining));
        let meetings =
            HostMeetings { socket: self.socket, own, hall, n_meetings: 0, has_met: false };
        Ok(QuicRendezvous(Side::Host(Box::new(meetings))))
    }
}

impl HostMeetings {
    /// Holds a meeting; returns `None` if any rank has nothing left to train.
    pub(super) async fn meet(&mut self, goes_on: bool) -> HostResult<Option<Met>> {
        loop {
            match self.gather(goes_on).await? {
                Gathered::Ready(arrived) => {
                    if let Some(met) = self.connect(arrived).await? {
                        return Ok(Some(met));
                    }
                }
                Gathered::Over(arrived) => {
                    dismiss(arrived).await;
                    return Ok(None);
                }
                Gathered::Waits(_) => {}
            }
        }
    }

    /// Waits until all who are needed have come.
    async fn gather(&mut self, goes_on: bool) -> HostResult<Gathered> {
        let needs_all = self.hall.survival.replaces || !self.has_met;
        let mut vacancy = None;
        loop {
            let now = Instant::now();
            match self.hall.gathered(goes_on, needs_all) {
                Gathered::Waits(free) => vacancy = Vacancy::of(free, vacancy, now),
                gathered => return Ok(gathered),
            }
            let hall = Arc::clone(&self.hall);
            let changed = hall.changed.notified();
            let Some(vacancy) = &mut vacancy else {
                changed.await;
                continue;
            };
            let end = vacancy.end(&hall.survival);
            if now >= end {
                return Err(self.give_up_on(&vacancy.ranks));
            }
            if vacancy.is_due(&hall.survival, now) {
                self.ask_for(&vacancy.ranks, Some(end - now))?;
            }
            let _ = timeout_at(vacancy.wakes(&hall.survival), changed).await;
        }
    }

    /// Ends the run, since nobody takes these places.
    fn give_up_on(&self, ranks: &[Rank]) -> QuicError {
        (self.hall.survival.tell)(&Event::GivesUp);
        self.socket.endpoint.close(6u8.into(), b"nobody took a free place");
        let waited_s = self.hall.survival.patience.as_secs();
        QuicError::NotTaken { ranks: listed(ranks), waited_s }
    }

    /// Tells the user which places are free, with a new key if the old one is no longer valid. `left` is
    /// the time for which all still wait for machines.
    fn ask_for(&self, free: &[Rank], left: Option<Duration>) -> HostResult<()> {
        let key = self.hall.has_expired().then(Key::random).transpose()?;
        if let Some(key) = &key {
            self.hall.renew(key.public()?, self.hall.survival.valid);
            self.socket.admit([(self.hall.join(), Purpose::Join)]);
        }
        (self.hall.survival.tell)(&Event::Missing { ranks: free, key: key.as_ref(), left });
        Ok(())
    }

    /// Connects those who have come, if all reach each other.
    async fn connect(&mut self, mut arrived: Vec<Arrived>) -> HostResult<Option<Met>> {
        self.n_meetings += 1;
        let meeting = self.n_meetings;
        let present: Vec<Rank> =
            [Rank(0)].into_iter().chain(arrived.iter().map(|of| of.rank)).collect();
        let members: Vec<Member> = [self.own.clone()]
            .into_iter()
            .chain(arrived.iter().map(|of| of.member.clone()))
            .collect();
        let ranks = members.iter().map(|member| (member.key, Purpose::Rank));
        self.socket.admit(ranks.chain([(self.hall.join(), Purpose::Join)]));
        let invitation =
            Invitation::Connect { meeting, present: present.clone(), members: members.clone() };
        for of in &mut arrived {
            let _ = tell(&mut of.comer.send, &invitation).await; // whoever is gone is found below
        }
        let mesh = Mesh { me: Rank(0), members: &members, host: None, meeting };
        let (hall, socket) = (Arc::clone(&self.hall), &mut self.socket);
        let connected =
            async { tokio::join!(mesh::connect(socket, mesh, deadline()), reports(&mut arrived)) };
        let (own, reports) = tokio::select! {
            connected = connected => connected,
            () = hall.lost(&present) => {
                give_up(arrived).await;
                return Ok(None);
            }
        };
        let (connections, own) = match own {
            Ok(connections) => (Some(connections), Some(Vec::new())),
            Err(unconnected) => (None, Some(unconnected.missing)),
        };
        let unreached = [own].into_iter().chain(reports).collect::<Vec<_>>();
        let dropped = dropped(&unreached);
        match connections.filter(|_| dropped.is_empty()) {
            Some(connections) => {
                for of in &mut arrived {
                    let _ = tell(&mut of.comer.send, &true).await;
                    let _ = of.comer.send.finish();
                }
                self.hall.met(&present);
                let free = self.hall.free();
                if !free.is_empty() {
                    self.ask_for(&free, None)?;
                }
                let is_first = !replace(&mut self.has_met, true);
                Ok(Some(Met { connections, present, is_first }))
            }
            None => {
                let ranks: Vec<Rank> = dropped.iter().map(|nth| present[*nth]).collect();
                self.hall.drop_members(&ranks);
                give_up(arrived).await;
                Ok(None)
            }
        }
    }

    /// Ends the run for all machines.
    pub(super) async fn close(self) {
        let (connections, waiting) = self.hall.close();
        for guest in waiting {
            let _ = timeout(TO_LEAVE, guest.dismiss()).await;
        }
        for connection in connections {
            let _ = timeout(TO_LEAVE, connection.closed()).await;
        }
        self.socket.endpoint.close(0u8.into(), b"left");
        let _ = timeout(TO_LEAVE, self.socket.endpoint.wait_idle()).await;
    }
}

/// Receives from each member the numbers of those it does not reach; `None` if it does not say.
async fn reports(arrived: &mut [Arrived]) -> Vec<Option<Vec<Rank>>> {
    let by = deadline() + TO_REPORT;
    let mut all = Vec::new();
    for of in arrived {
        let report = timeout_at(by, hear(&mut of.comer.recv, MAX_REPORT)).await;
        all.push(report.ok().flatten());
    }
    all
}

/// Returns the members to drop, so that the others reach each other. `unreached` has for each member
/// those whom it does not reach, if it says so. The first one is the host, which stays.
fn dropped(unreached: &[Option<Vec<Rank>>]) -> Vec<usize> {
    let n = unreached.len();
    let is_silent = |nth: &usize| unreached[*nth].is_none();
    let mut dropped: Vec<usize> = (1..n).filter(is_silent).collect();
    let misses = |a: usize, b: usize| {
        let says = |a: usize, b: usize| {
            unreached[a].as_ref().is_some_and(|all| all.contains(&Rank(b as u32)))
        };
        a != b && (says(a, b) || says(b, a))
    };
    loop {
        let stays = |nth: &usize| !dropped.contains(nth);
        let n_missed = |a: usize| (0..n).filter(stays).filter(|b| misses(a, *b)).count();
        let worst = (1..n).filter(stays).max_by_key(|nth| (n_missed(*nth), misses(*nth, 0)));
        match worst.filter(|nth| n_missed(*nth) > 0) {
            Some(worst) => dropped.push(worst),
            None => return dropped,
        }
    }
}

/// Tells those who have come that they are to come again.
async fn give_up(arrived: Vec<Arrived>) {
    for mut of in arrived {
        let _ = tell(&mut of.comer.send, &false).await;
        let _ = of.comer.send.finish();
    }
}

/// Tells those who have come that the run is over, and waits until they know.
async fn dismiss(arrived: Vec<Arrived>) {
    for mut of in arrived {
        let _ = tell(&mut of.comer.send, &Invitation::Over).await;
        let _ = of.comer.send.finish();
        let _ = timeout(TO_MEET, of.comer.send.stopped()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws who does not reach whom: `01` is the host's miss of member 1; `-2` says nothing.
    fn dropped_of(n: usize, misses: &str) -> Vec<usize> {
        let mut unreached = vec![Some(Vec::new()); n];
        for miss in misses.split_whitespace() {
            let digit = |nth: usize| miss[nth..=nth].parse::<usize>();
            let to = digit(1).expect("a number");
            match digit(0) {
                Ok(from) => unreached[from].as_mut().expect("it speaks").push(Rank(to as u32)),
                Err(_) => unreached[to] = None,
            }
        }
        let mut dropped = dropped(&unreached);
        dropped.sort_unstable();
        dropped
    }

    #[test]
    fn as_few_as_possible_are_dropped() {
        for (n, misses, expected) in [
            (1, "", &[][..]),
            (4, "", &[]),
            (4, "01", &[1]),
            (4, "10", &[1]),
            (4, "12", &[2]),
            (4, "12 21", &[2]),
            (4, "12 32", &[2]),
            (4, "01 02 03", &[1, 2, 3]),
            (4, "-3", &[3]),
            (4, "-3 13 23", &[3]),
            (5, "12 13 42", &[2, 3]),
        ] {
            assert_eq!(dropped_of(n, misses), expected, "{misses}");
        }
    }
}
