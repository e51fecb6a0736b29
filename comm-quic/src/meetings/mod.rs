//! Meetings of ranks over QUIC: at the start, and after deaths.
//!
//! The host is the place of the meetings, so its own death ends the run. The connection by which a
//! member joined stays open. A member that loses it counts as dead: killed, asleep, or out of reach.
//! At a meeting every living member asks the host, which names those who are present. They connect
//! with each other anew, and each reports whom it does not reach. If all reach all, the host lets
//! them go on. Otherwise it drops members until the others reach each other.
//!
//! A machine that joins takes a free place at once and fetches its files, while the others train. It
//! comes to their next meeting.

mod hall;
mod host;
mod member;
mod vacancy;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chimera_core::comm::{CommError, Framed, Meeting, ProcessRendezvous, Rendezvous};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use quinn::{Connection, ConnectionError};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use self::host::HostMeetings;
use self::member::MemberMeetings;
use crate::dial::Member;
use crate::net::runtime;
use crate::wire::QuicWire;
use crate::{Key, Quic, QuicError, Seat, Wish};

/// Time for the ranks of a meeting to connect.
const TO_MEET: Duration = Duration::from_secs(20);

/// The host's answer to members that come to a meeting.
#[derive(Serialize, Deserialize)]
enum Invitation {
    /// Some rank has nothing left to train.
    Over,
    /// These members are to connect with each other.
    Connect {
        /// The number of the meeting.
        meeting: u64,
        /// Ranks of the run that are present, ascending; the first is the host.
        present: Vec<Rank>,
        /// Keys and addresses of these ranks.
        members: Vec<Member>,
    },
}

/// Ranks that have met, and the connections of one of them.
struct Met {
    connections: BTreeMap<Rank, Connection>,
    present: Vec<Rank>,
    is_first: bool,
}

/// A change in the places of a run.
pub enum Event<'e> {
    /// A machine has taken the place of a rank.
    Came(Rank, &'e Wish),
    /// A machine waits until a place is free.
    Waits(&'e Wish),
    /// A rank has left, for this reason.
    Left(Rank, &'e str),
    /// These ranks are missing, and machines may take their places.
    Missing {
        /// The ranks.
        ranks: &'e [Rank],
        /// A new key for joining, if the old one was no longer valid.
        key: Option<&'e Key>,
        /// Time for which all still wait for machines; `None` if they train on without.
        left: Option<Duration>,
    },
    /// Nobody has taken a place for so long that the run ends.
    GivesUp,
    /// A newcomer is ready to join, while the others train.
    Ready(Rank),
}

/// Checks whether a machine may have the place of a rank; the error says why not.
pub type Fits = Arc<dyn Fn(Rank, &Wish) -> Result<(), String> + Send + Sync>;

/// The way in which a run goes on after deaths.
pub struct Survival {
    /// Whether all wait until the places of dead ranks are taken.
    pub replaces: bool,
    /// The most time that all wait for a place to be taken.
    pub patience: Duration,
    /// Time between two events about places that are still free.
    pub remind: Duration,
    /// Time for which a key for joining is valid.
    pub valid: Duration,
    /// The expiry of the first key.
    pub until: std::time::Instant,
    /// Checks whether a machine may have a place.
    pub fits: Fits,
    /// Called with every event.
    pub tell: Arc<dyn Fn(&Event<'_>) + Send + Sync>,
}

impl Survival {
    /// The usual time between two events about places that are still free.
    pub const REMIND: Duration = Duration::from_secs(30);
}

/// The meeting place of the ranks of a run, as seen by one rank.
pub struct QuicRendezvous(Side);

enum Side {
    Host(Box<HostMeetings>),
    Member(Box<MemberMeetings>),
}

impl Seat {
    /// Returns the meetings of a run that goes on when a rank has died.
    pub fn meetings(self) -> QuicRendezvous {
        QuicRendezvous(Side::Member(Box::new(MemberMeetings::of(self))))
    }
}

impl QuicRendezvous {
    fn gather(&mut self, goes_on: bool) -> Result<Option<Met>, CommError> {
        let runtime = runtime()?;
        match &mut self.0 {
            Side::Host(host) => Ok(runtime.block_on(host.meet(goes_on))?),
            Side::Member(member) => {
                let me = member.rank;
                runtime.block_on(member.meet(goes_on)).map_err(|reason| {
                    let message = format!(
                        "the host has ended, or has gone on without this machine ({reason}): join again while its ticket is \
                         valid"
                    );
                    CommError::Aborted(Fault::new(Class::PeerLost, me, message))
                })
            }
        }
    }
}

impl Rendezvous<Quic> for QuicRendezvous {
    fn meet(&mut self) -> Result<Option<Meeting<Quic>>, CommError> {
        let Some(Met { connections, present, is_first }) = self.gather(true)? else {
            return Ok(None);
        };
        let index = present.partition_point(|rank| *rank < self.rank()) as u32;
        let wire = QuicWire::new(None, connections, runtime()?.handle());
        let comm = Framed::new(wire, Rank(index), present.len() as u32);
        Ok(Some(Meeting { comm, is_first, present }))
    }
}

impl ProcessRendezvous for QuicRendezvous {
    type End = Quic;

    fn rank(&self) -> Rank {
        match &self.0 {
            Side::Host(_) => Rank(0),
            Side::Member(member) => member.rank,
        }
    }

    /// Newcomers come to every meeting, and nobody else can be started.
    fn replace_missing(&mut self) {}

    fn leave(mut self) -> Result<(), CommError> {
        self.gather(false)?;
        let runtime = runtime()?;
        match self.0 {
            Side::Host(host) => runtime.block_on(host.close()),
            Side::Member(member) => runtime.block_on(member.close()),
        }
        Ok(())
    }
}

/// Returns the time by which the ranks of a meeting have connected.
fn deadline() -> Instant {
    Instant::now() + TO_MEET
}

/// Returns true if a connection has ended as at the end of a run.
fn is_end(why: &ConnectionError) -> bool {
    matches!(why, ConnectionError::ApplicationClosed(end) if end.error_code == 0u8.into())
}

/// An error of a host that cannot hold a meeting.
type HostResult<T> = Result<T, QuicError>;
