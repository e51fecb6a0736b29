//! Exchange of tensors between ranks.
//!
//! A transport implements three small traits. [`Comm`] carries tensors from rank to rank.
//! [`Endpoint`] carries control data and aborts the run. [`Liveness`] reports the positions of
//! ranks when something is wrong, and passes on a request to stop. Sending never blocks.
//! Collectives consist of these messages: [`all_gather`] and the reductions of the
//! [engine](crate::engine) send them in a fixed order, so every transport gives the same bits. A
//! transport may also offer an all-reduce of its own, which is used only on request.
//!
//! [`conformance`] is the test suite for transports.

mod all_gather;
pub mod conformance;
mod delayed;
mod host;
mod mailbox;
mod message;
mod packed;
mod process;
mod rendezvous;
mod tag;
mod threads;
mod traffic;
mod turn;
mod wire;
mod wrap;

use std::time::{Duration, Instant};

pub use all_gather::{all_gather, all_gather_json};
pub use chimera_schedule::analyze::Position;
pub use delayed::{Delayed, Stamped};
pub use host::{Host, HostStaged};
pub use mailbox::{Inbox, Mailbox};
pub use message::Message;
pub(crate) use packed::{pack, unpack};
pub use process::{Control, Process, ProcessRendezvous};
pub use rendezvous::{Meeting, Rendezvous, StagedRendezvous};
pub use tag::{Payload, Tag};
pub use threads::{Threads, threads};
pub use traffic::Traffic;
pub use turn::OrderedMessage;
pub use wire::{Framed, Wire};
pub use wrap::Wrap;

use chimera_schedule::ids::Rank;

use crate::device::DeviceError;
use crate::fault::{Class, Fault};

/// The reason that a message was not received.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum CommError {
    /// The message did not arrive in time.
    #[error("waited {:.1} s for {what} from {from}", waited.as_secs_f64())]
    Timeout {
        /// The rank that should have sent the message.
        from: Rank,
        /// The awaited message, in words.
        what: String,
        /// Length of the wait.
        waited: Duration,
    },
    /// The sender ended without sending the message.
    #[error("{from} ended before it sent {what}")]
    Lost {
        /// The rank that ended.
        from: Rank,
        /// The awaited message, in words.
        what: String,
    },
    /// Some rank aborted the run, with this cause.
    #[error("the run was aborted: {0}")]
    Aborted(Fault),
    /// The received data is not a message of this version.
    #[error("{from} sent something unreadable: {reason}; start the same version on all ranks")]
    Unreadable {
        /// The sender.
        from: Rank,
        /// The problem with the data.
        reason: String,
    },
    /// The transport itself failed.
    #[error("the transport failed: {0}")]
    Failed(String),
    /// The library used by the transport lacks a required function.
    #[error("{0}")]
    Unsupported(String),
    /// The device of the sent or received tensor failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl CommError {
    /// Length of a wait that timed out.
    pub(crate) fn waited_mut(&mut self) -> Option<&mut Duration> {
        match self {
            CommError::Timeout { waited, .. } => Some(waited),
            _ => None,
        }
    }

    /// Returns the fault that ends the run, as seen by `rank`.
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

/// Everything besides messages that a transport can report without waiting: the positions of ranks,
/// to find the one to blame for a timeout, and requests to stop.
pub trait Liveness: Send {
    /// Publishes this rank's position. Called before every instruction, so it must cost no more
    /// than a store to memory, from which another thread answers queries.
    fn report_progress(&mut self, _position: Position) {}

    /// Returns the last reported position of every rank, by rank; `None` for ranks that do not
    /// answer by `deadline`, since they are stopped or gone. Empty if queries are not supported.
    ///
    /// # Errors
    /// If another rank has reported why the run is over, or is known to have died. Returned as soon
    /// as this is known, since there is nothing left to find out.
    fn query_progress(&mut self, _deadline: Instant) -> Result<Vec<Option<Position>>, CommError> {
        Ok(Vec::new())
    }

    /// The transport, if it is able to evict `rank` should that rank be stalled.
    fn evictor(&mut self, _rank: Rank) -> Option<&mut dyn Evict> {
        None
    }

    /// Lets time pass between two queries of positions.
    fn pause(&mut self, time: Duration) {
        std::thread::sleep(time);
    }

    /// Asks all ranks to stop, and returns at once. Messages go on as before.
    fn request_stop(&mut self) {}

    /// Returns true once any rank has asked all to stop. Returns `None` if the transport cannot
    /// pass such a request on, or cannot tolerate messages that are sent but never received; then a
    /// step that has begun is finished.
    fn stop_requested(&self) -> Option<bool> {
        None
    }
}

/// A transport that can end stalled ranks.
pub trait Evict {
    /// Ends the process of a stalled rank and waits until its death is observed. If the rank wakes
    /// before that, it learns the reason. Returns true if the rank is dead. Returns false if the
    /// rank cannot be reached; the run then cannot continue without it.
    fn evict(&mut self, rank: Rank) -> bool;
}

/// One rank's end of a transport, without the transfer of tensors.
pub trait Endpoint: Liveness {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Number of ranks.
    fn n_ranks(&self) -> u32;

    /// Sends control data and returns at once. What one rank sends to another arrives in order.
    fn send_bytes(&mut self, to: Rank, bytes: Vec<u8>) -> Result<(), CommError>;

    /// Receives the next control data of `from`, if it has arrived.
    fn try_recv_bytes(&mut self, from: Rank) -> Result<Option<Vec<u8>>, CommError>;

    /// Receives the next control data of `from`, waiting for it until `deadline`.
    fn recv_bytes(&mut self, from: Rank, deadline: Instant) -> Result<Vec<u8>, CommError>;

    /// Makes every wait of every rank end with [`CommError::Aborted`]. The first cause stands.
    fn abort(&mut self, cause: &Fault);

    /// Returns the links that were used since the last call, if the transport measures them.
    fn take_traffic(&mut self) -> Vec<(Rank, Traffic)> {
        Vec::new()
    }

    /// The transport, if it needs the messages of a step in one order common to all ranks.
    fn ordered(&mut self) -> Option<&mut dyn Ordered> {
        None
    }
}

/// A transport that needs the messages of a step in one order common to all ranks.
pub trait Ordered {
    /// Appends this rank's next messages to the common order. The messages of a group can be issued
    /// together, once this rank has reached all that it sends of them.
    ///
    /// # Errors
    /// If the messages of earlier calls are not done.
    fn follow(&mut self, groups: Vec<Vec<OrderedMessage>>) -> Result<(), CommError>;
}

/// One rank's end of a transport of tensors.
pub trait Comm<T>: Endpoint {
    /// Begins to send a tensor and returns at once. The tensor may share memory with clones that
    /// the sender keeps, so neither side may write to it.
    fn send(&mut self, to: Rank, tag: Tag, tensor: T) -> Result<(), CommError>;

    /// Receives a message if it has arrived.
    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<T>, CommError>;

    /// Receives a message, waiting for it until `deadline`.
    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<T, CommError>;

    /// The transport, if it is to reduce over these ranks itself. There is no default, so that no
    /// wrapper hides the all-reduce of its inner transport.
    fn reducer(&mut self, members: &[Rank]) -> Option<&mut dyn AllReduce<T>>;
}

/// A transport with an all-reduce of its own.
pub trait AllReduce<T> {
    /// Starts the transport's own sum of `tensor` over `members`, including this rank. All start
    /// their sums in the same order. Each receives the result from itself, with this tag.
    fn all_reduce(&mut self, members: &[Rank], tag: Tag, tensor: T) -> Result<(), CommError>;
}

/// Returns the wrapped transport's own all-reduce, for wrappers.
///
/// # Errors
/// If the transport has none.
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
