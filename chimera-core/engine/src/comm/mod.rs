//! How ranks exchange tensors.
//!
//! A transport does three things, each a small trait: it carries tensors from rank to rank ([`Comm`]), it carries
//! control data and ends the run ([`Endpoint`]), and it tells where ranks are when something is wrong, and that one
//! of them wants all to stop ([`Liveness`]). Sending never blocks. Collectives are made of these messages, by [`all_gather`] and by the
//! [engine](crate::engine)'s reductions, in a fixed order, so every transport gives the same bits; a transport may
//! offer an all-reduce of its own, for those who ask for it.
//!
//! [`conformance`] is the suite that every transport calls.

mod all_gather;
pub mod conformance;
mod delayed;
mod frame;
mod host;
mod mailbox;
mod rendezvous;
mod tag;
mod threads;
mod turn;
mod wire;
mod wrap;

use std::time::{Duration, Instant};

pub use all_gather::{all_gather, all_gather_json};
pub use chimera_schedule::analyze::Position;
pub use delayed::{Delayed, Stamped};
pub use host::{Host, HostStaged};
pub use mailbox::Mailbox;
pub use rendezvous::{Meeting, Rendezvous, StagedRendezvous};
pub use tag::{Payload, Tag};
pub use threads::{Threads, threads};
pub use turn::OrderedMessage;
pub use wire::{Framed, Wire};
pub use wrap::Wrap;

use chimera_schedule::ids::Rank;

use crate::device::DeviceError;
use crate::fault::{Class, Fault};

/// Why a message did not come.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum CommError {
    /// It did not come in time.
    #[error("waited {:.1} s for {what} from {from}", waited.as_secs_f64())]
    Timeout {
        /// Who should have sent it.
        from: Rank,
        /// What was waited for.
        what: String,
        /// How long.
        waited: Duration,
    },
    /// The sender ended without sending it.
    #[error("{from} ended before it sent {what}")]
    Lost {
        /// Who ended.
        from: Rank,
        /// What was waited for.
        what: String,
    },
    /// Some rank gave up, for this cause.
    #[error("the run was aborted: {0}")]
    Aborted(Fault),
    /// What came is no message of this version.
    #[error("{from} sent what cannot be read: {reason}; start the same version on all ranks")]
    Unreadable {
        /// Who sent it.
        from: Rank,
        /// What is wrong with it.
        reason: String,
    },
    /// The transport itself failed.
    #[error("the transport failed: {0}")]
    Failed(String),
    /// The library below the transport lacks a function that this needs.
    #[error("{0}")]
    Unsupported(String),
    /// The device from or to which a message goes failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl CommError {
    /// How long the wait was, if it was too long.
    pub(crate) fn waited_mut(&mut self) -> Option<&mut Duration> {
        match self {
            CommError::Timeout { waited, .. } => Some(waited),
            _ => None,
        }
    }

    /// What ends a run, as `rank` sees it.
    pub fn into_fault(self, rank: Rank) -> Fault {
        let message = self.to_string();
        match self {
            CommError::Aborted(cause) => cause,
            CommError::Timeout { from, .. } => {
                Fault { peer: Some(from), ..Fault::new(Class::Timeout, rank, message) }
            }
            CommError::Lost { from, .. } => {
                Fault { peer: Some(from), ..Fault::new(Class::PeerLost, rank, message) }
            }
            CommError::Device(error) => error.into_fault(rank),
            CommError::Unreadable { from, .. } => {
                Fault { peer: Some(from), ..Fault::new(Class::Mismatch, rank, message) }
            }
            CommError::Unsupported(_) => Fault::new(Class::Usage, rank, message),
            CommError::Failed(_) => Fault::new(Class::Internal, rank, message),
        }
    }
}

/// What a transport can tell beside messages, without waiting: where ranks are, which is asked when a wait has been too
/// long to find out which rank is to blame, and that the run is to stop.
pub trait Liveness: Send {
    /// Lets other ranks learn where this one is. Called before every instruction, so it must cost no more than a
    /// store to memory; whatever answers for the rank reads it from there, while the rank computes.
    fn report_progress(&mut self, _position: Position) {}

    /// Where every rank was when it last reported, by rank; `None` for ranks that do not answer until `deadline`,
    /// because they are stopped, or gone. Empty if the transport cannot tell.
    ///
    /// # Errors
    /// As soon as another rank has said why the run is over, or is known to have died: then that is why, and nobody need be
    /// asked.
    fn query_progress(&mut self, _deadline: Instant) -> Result<Vec<Option<Position>>, CommError> {
        Ok(Vec::new())
    }

    /// The transport, if it can evict `rank`, should that be stalled.
    fn evictor(&mut self, _rank: Rank) -> Option<&mut dyn Evict> {
        None
    }

    /// Lets time pass between two looks at where ranks are.
    fn pause(&mut self, time: Duration) {
        std::thread::sleep(time);
    }

    /// Asks all ranks to stop, and returns at once. Messages go on as before.
    fn request_stop(&mut self) {}

    /// Whether some rank has asked all to stop; it stays so. `None` if the transport cannot pass such a request on, or
    /// cannot bear a message that is sent and never received: then steps that were begun are finished.
    fn stop_requested(&self) -> Option<bool> {
        None
    }
}

/// A transport that ends stalled ranks.
pub trait Evict {
    /// Makes a stalled rank a dead one: ends its process, and waits until that is seen. A rank that wakes before learns why it
    /// ends. Returns true if it is dead; if not, it cannot be reached, and the run cannot go on without it.
    fn evict(&mut self, rank: Rank) -> bool;
}

/// One rank's end of a transport, as far as it carries no tensors.
pub trait Endpoint: Liveness {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Number of ranks.
    fn n_ranks(&self) -> u32;

    /// Sends control data, and returns at once. What one rank sends to another arrives in order.
    fn send_bytes(&mut self, to: Rank, bytes: Vec<u8>) -> Result<(), CommError>;

    /// Receives the next control data of `from`, if it is there.
    fn try_recv_bytes(&mut self, from: Rank) -> Result<Option<Vec<u8>>, CommError>;

    /// Receives the next control data of `from`, waiting for it until `deadline`.
    fn recv_bytes(&mut self, from: Rank, deadline: Instant) -> Result<Vec<u8>, CommError>;

    /// Makes every wait of every rank end with [`CommError::Aborted`]. The first cause stands.
    fn abort(&mut self, cause: &Fault);

    /// The transport, if the messages of a step must be issued in one order of all ranks.
    fn ordered(&mut self) -> Option<&mut dyn Ordered> {
        None
    }
}

/// A transport whose ranks issue the messages of a step in one order.
pub trait Ordered {
    /// Says which messages of this rank come next, behind those said before, in the one order of all ranks. Those of
    /// a group can be issued at once, when this rank has come to all that it sends of them.
    ///
    /// # Errors
    /// If what was said before is not done.
    fn follow(&mut self, groups: Vec<Vec<OrderedMessage>>) -> Result<(), CommError>;
}

/// One rank's end of a transport of tensors.
pub trait Comm<T>: Endpoint {
    /// Puts a tensor on its way and returns at once. The tensor may share memory with clones that the
    /// sender keeps, so neither side may write to it.
    fn send(&mut self, to: Rank, tag: Tag, tensor: T) -> Result<(), CommError>;

    /// Receives a message if it is there.
    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<T>, CommError>;

    /// Receives a message, waiting for it until `deadline`.
    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<T, CommError>;

    /// The transport, if it is to reduce over these ranks by itself. There is no default, so that no wrapper
    /// hides the all-reduce of what it wraps.
    fn reducer(&mut self, members: &[Rank]) -> Option<&mut dyn AllReduce<T>>;
}

/// A transport with an all-reduce of its own.
pub trait AllReduce<T> {
    /// Starts the transport's own sum of `tensor` over `members`, this rank among them. All of them start their sums in
    /// one order, and each receives it from itself, by this tag.
    fn all_reduce(&mut self, members: &[Rank], tag: Tag, tensor: T) -> Result<(), CommError>;
}

/// The own all-reduce of a transport that a wrapper was asked for.
///
/// # Errors
/// If it has none.
pub fn reducer_of<'c, T, C: Comm<T> + ?Sized>(
    comm: &'c mut C,
    members: &[Rank],
) -> Result<&'c mut dyn AllReduce<T>, CommError> {
    let absent = || CommError::Failed("the transport has no all-reduce of its own".into());
    comm.reducer(members).ok_or_else(absent)
}

/// A borrowed end carries tensors too.
impl<T, C: Comm<T> + ?Sized> Comm<T> for &mut C {
    fn send(&mut self, to: Rank, tag: Tag, tensor: T) -> Result<(), CommError> {
        (**self).send(to, tag, tensor)
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<T>, CommError> {
        (**self).try_recv(from, tag)
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<T, CommError> {
        (**self).recv(from, tag, deadline)
    }

    fn reducer(&mut self, members: &[Rank]) -> Option<&mut dyn AllReduce<T>> {
        (**self).reducer(members)
    }
}
