//! The sessions of a relay: who is there, and at which address. Nothing is stored for anybody who has not
//! proven its address and shown a pass that the relay's key made.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::frame::{FromRelay, N_CLAIM, N_PROOF, Refusal, Wanted};
use super::id::Id;
use super::link::BETWEEN;
use super::pass::{N_NONCE, RelayKey, first, is_equal};

/// A member that has not asked for this long has no place any more.
const TO_ASK: Duration = BETWEEN.saturating_mul(6);
/// Proofs of addresses are valid for one to two of these.
const PROOF_VALID: Duration = Duration::from_secs(60);
/// Bytes of a burst at least, and time of the full rate that it may have.
const MIN_BURST: f64 = 65_536.0;
const BURST_S: f64 = 0.25;

/// The limits of a relay.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sessions at a time.
    pub n_sessions: usize,
    /// Members of a session at a time.
    pub n_members: usize,
    /// Bytes per second of a session. Datagrams beyond are dropped.
    pub rate: f64,
}

/// The end of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ended {
    pub(super) n_members: usize,
    pub(super) n_bytes: u64,
    pub(super) n_dropped: u64,
}

pub(super) struct Sessions {
    limits: Limits,
    key: RelayKey,
    /// The key of proofs of addresses.
    secret: [u8; blake3::KEY_LEN],
    began: Instant,
    sessions: HashMap<Nonce, Session>,
    places: HashMap<SocketAddr, (Nonce, Id)>,
}

type Nonce = [u8; N_NONCE];
/// The address of the relay that a member uses, if it has several.
type Via = Option<IpAddr>;

struct Session {
    members: HashMap<Id, Occupant>,
    most_members: usize,
    /// Bytes that may go now, as of this time.
    left: (f64, Instant),
    n_bytes: u64,
    n_dropped: u64,
}

struct Occupant {
    at: SocketAddr,
    via: Via,
    claim: [u8; N_CLAIM],
    asked: Instant,
}

impl Sessions {
    pub(super) fn new(
        key: RelayKey,
        limits: Limits,
        secret: [u8; blake3::KEY_LEN],
        now: Instant,
    ) -> Sessions {
        let (sessions, places) = (HashMap::new(), HashMap::new());
        Sessions { limits, key, secret, began: now, sessions, places }
    }

    pub(super) fn n_sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Answers a question with the proof that the address got it.
    pub(super) fn prove(&self, from: SocketAddr, wanted: &Wanted, now: Instant) -> FromRelay {
        FromRelay::Prove(wanted.claim, self.proof(from, self.epoch(now)))
    }

    /// Gives a member a place, or keeps the one that it has. Returns no answer to those who have not
    /// proven their address.
    pub(super) fn enter(
        &mut self,
        (from, via): (SocketAddr, Via),
        wanted: &Wanted,
        proof: [u8; N_PROOF],
        now: Instant,
    ) -> Option<FromRelay> {
        let epoch = self.epoch(now);
        let is_proof = |epoch| is_equal(self.proof(from, epoch), proof);
        if !is_proof(epoch) && !epoch.checked_sub(1).is_some_and(is_proof) {
            return None;
        }
        Some(match self.place((from, via), wanted, now) {
            Ok(()) => FromRelay::Entered(wanted.claim),
            Err(why) => FromRelay::Refused(wanted.claim, Some(why)),
        })
    }

    fn place(
        &mut self,
        (from, via): (SocketAddr, Via),
        wanted: &Wanted,
        now: Instant,
    ) -> Result<(), Refusal> {
        let Wanted { nonce, tag, id, claim } = *wanted;
        if !is_equal(self.key.tag(nonce), tag) {
            return Err(Refusal::WrongPass);
        }
        let is_new = !self.sessions.contains_key(&nonce);
        if is_new && self.sessions.len() >= self.limits.n_sessions {
            return Err(Refusal::TooManySessions);
        }
        let session = self.sessions.entry(nonce).or_insert_with(|| Session::new(now));
        match session.members.get(&id) {
            Some(member) if !is_equal(member.claim, claim) => return Err(Refusal::Taken),
            None if session.members.len() >= self.limits.n_members => {
                return Err(Refusal::TooManyMembers);
            }
            _ => {}
        }
        let member = Occupant { at: from, via, claim, asked: now };
        let before = session.members.insert(id, member).map(|before| before.at);
        session.most_members = session.most_members.max(session.members.len());
        if let Some(before) = before.filter(|before| *before != from) {
            self.places.remove(&before);
        }
        let other = self.places.insert(from, (nonce, id)).filter(|other| *other != (nonce, id));
        if let Some((nonce, id)) = other {
            self.leave(nonce, id); // the address is that of another member now
        }
        Ok(())
    }

    /// Returns where bytes of an address go that are for a member, by which address of the relay, and the
    /// id of their sender.
    pub(super) fn route(
        &mut self,
        from: SocketAddr,
        to: Id,
        n_bytes: usize,
        now: Instant,
    ) -> Option<(SocketAddr, Via, Id)> {
        let (nonce, id) = *self.places.get(&from)?;
        let session = self.sessions.get_mut(&nonce)?;
        let &Occupant { at, via, .. } = session.members.get(&to)?;
        session.admit(n_bytes, self.limits.rate, now).then_some((at, via, id))
    }

    /// Forgets members that have not asked, and sessions without members.
    pub(super) fn sweep(&mut self, now: Instant) -> Vec<Ended> {
        let is_late = |member: &Occupant| now.saturating_duration_since(member.asked) >= TO_ASK;
        for session in self.sessions.values_mut() {
            for (_, member) in session.members.extract_if(|_, member| is_late(member)) {
                self.places.remove(&member.at);
            }
        }
        let ended = self.sessions.extract_if(|_, session| session.members.is_empty());
        ended.map(|(_, session)| session.ended()).collect()
    }

    fn leave(&mut self, nonce: Nonce, id: Id) {
        if let Some(session) = self.sessions.get_mut(&nonce) {
            session.members.remove(&id);
        }
    }

    fn epoch(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_secs() / PROOF_VALID.as_secs()
    }

    fn proof(&self, of: SocketAddr, epoch: u64) -> [u8; N_PROOF] {
        first(blake3::keyed_hash(&self.secret, format!("{epoch} {of}").as_bytes()))
    }
}

impl Session {
    fn new(now: Instant) -> Session {
        let members = HashMap::new();
        Session { members, most_members: 0, left: (MIN_BURST, now), n_bytes: 0, n_dropped: 0 }
    }

    /// Returns true if bytes are within the rate, and counts them.
    fn admit(&mut self, n_bytes: usize, rate: f64, now: Instant) -> bool {
        let (left, since) = self.left;
        let grown = left + rate * now.saturating_duration_since(since).as_secs_f64();
        let left = grown.min(MIN_BURST.max(rate * BURST_S)) - n_bytes as f64;
        let is_within = left >= 0.0;
        self.left = (if is_within { left } else { left + n_bytes as f64 }, now);
        let count = if is_within { &mut self.n_bytes } else { &mut self.n_dropped };
        *count += n_bytes as u64;
        is_within
    }

    fn ended(self) -> Ended {
        let (n_members, n_bytes, n_dropped) = (self.most_members, self.n_bytes, self.n_dropped);
        Ended { n_members, n_bytes, n_dropped }
    }
}

#[cfg(test)]
mod tests;
