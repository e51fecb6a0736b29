//! How ranks exchange tensors.
//!
//! The trait is small: point-to-point messages that never block the sender, one exchange of a few
//! bytes among all ranks, and an abort. Sums over replicas are made of these messages by the
//! [engine](crate::engine), in a fixed order, so every transport gives the same bits; a transport may offer a
//! sum of its own, for those who ask for it.
//!
//! [`conformance`] is the suite that every transport calls.

pub mod conformance;
mod delayed;
mod host;
mod position;
mod threads;

use std::fmt;
use std::time::{Duration, Instant};

pub use delayed::{Delayed, Stamped};
pub use host::{Host, HostStaged};
pub use position::Position;
pub use threads::{Threads, threads};

use crate::effects::Token;
use crate::fault::{Class, Fault};
use crate::ids::{BucketId, Rank, StageId};
use crate::kernels::DeviceError;

/// What a message is about. A (sender, receiver, tag) is used once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tag {
    /// The step it belongs to, the first of a window; for parts of sums, the number of the update.
    pub step: u64,
    /// What it carries.
    pub what: What,
}

/// What a message carries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// The value of a token.
    Token(Token),
    /// One replica's part of the sum of a slice of the gradients of a bucket, to the owner of the slice.
    Part {
        /// The bucket.
        bucket: BucketId,
        /// Number of the slice in the bucket.
        slice: u32,
    },
    /// The sum, from the owner to the other replicas.
    Sum {
        /// The bucket.
        bucket: BucketId,
        /// Number of the slice in the bucket.
        slice: u32,
    },
    /// The weights of the `tensor`-th tensor of a bucket after its update, from its owner to the other
    /// replicas.
    Updated {
        /// The bucket.
        bucket: BucketId,
        /// Index of the tensor in the bucket.
        tensor: u32,
    },
    /// What a stage makes of a sample that is not trained on.
    Evaluated {
        /// Number of the sample.
        sample: u64,
        /// The stage.
        stage: StageId,
    },
    /// Weights of a stage, to rank 0.
    Weight {
        /// The stage.
        stage: StageId,
        /// Index of the parameter.
        tensor: u32,
    },
    /// What a transport that is made of another one tells itself over that; `step` counts.
    Aside {
        /// What it is about.
        line: u8,
    },
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Token(token) => write!(f, "{token}"),
            What::Part { bucket, slice } => write!(f, "gradient slice {slice} of {bucket}"),
            What::Sum { bucket, slice } => {
                write!(f, "the summed gradient slice {slice} of {bucket}")
            }
            What::Updated { bucket, tensor } => {
                write!(f, "the updated tensor {tensor} of {bucket}")
            }
            What::Evaluated { sample, stage } => {
                write!(f, "validation sample {sample} behind {stage}")
            }
            What::Weight { stage, tensor } => write!(f, "weights {tensor} of {stage}"),
            What::Aside { line } => write!(f, "what the transport has to say on line {line}"),
        }
    }
}

impl fmt::Debug for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

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
    /// The device from or to which a message goes failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl CommError {
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
            CommError::Failed(_) => Fault::new(Class::Internal, rank, message),
        }
    }
}

/// One rank's end of a transport.
pub trait Comm<T>: Send {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Number of ranks.
    fn n_ranks(&self) -> u32;

    /// Puts a tensor on its way and returns at once. The tensor may share memory with clones that the
    /// sender keeps, so neither side may write to it.
    fn send(&mut self, to: Rank, tag: Tag, tensor: T) -> Result<(), CommError>;

    /// Announces that a message will be taken, so that it can travel straight to where it is wanted.
    fn post(&mut self, from: Rank, tag: Tag) -> Result<(), CommError>;

    /// Takes a message if it is there.
    fn try_take(&mut self, from: Rank, tag: Tag) -> Result<Option<T>, CommError>;

    /// Takes a message, waiting for it until `deadline`.
    fn take(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<T, CommError>;

    /// Whether the transport is to sum over these ranks by itself.
    fn has_sum(&self, members: &[Rank]) -> bool;

    /// Starts the transport's own sum of `tensor` over `members`, this rank among them, if it has one. All of
    /// them start their sums in one order, and each takes it from itself, by this tag.
    fn sum(&mut self, _members: &[Rank], _tag: Tag, _tensor: T) -> Result<(), CommError> {
        Err(CommError::Failed("it has no sum of its own".into()))
    }

    /// Gives `bytes` to every rank and returns those of all ranks, by rank. All ranks call it in the
    /// same order.
    fn exchange(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>, CommError>;

    /// Lets other ranks learn where this one is. Called before every instruction, so it must cost no more
    /// than a store to memory; whatever answers for the rank reads it from there, while the rank computes.
    fn publish(&mut self, position: Position);

    /// Where every rank was when it last said so, by rank; `None` for those that do not answer until
    /// `deadline`, because they are stopped, or gone. Asked when something is wrong, abort included.
    fn positions(&mut self, deadline: Instant) -> Vec<Option<Position>>;

    /// Makes every wait of every rank end with [`CommError::Aborted`]. The first cause stands.
    fn abort(&mut self, cause: &Fault);
}

/// A borrowed end is an end, so that wrappers can be put around it.
impl<T, C: Comm<T> + ?Sized> Comm<T> for &mut C {
    fn rank(&self) -> Rank {
        (**self).rank()
    }

    fn n_ranks(&self) -> u32 {
        (**self).n_ranks()
    }

    fn send(&mut self, to: Rank, tag: Tag, tensor: T) -> Result<(), CommError> {
        (**self).send(to, tag, tensor)
    }

    fn post(&mut self, from: Rank, tag: Tag) -> Result<(), CommError> {
        (**self).post(from, tag)
    }

    fn try_take(&mut self, from: Rank, tag: Tag) -> Result<Option<T>, CommError> {
        (**self).try_take(from, tag)
    }

    fn take(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<T, CommError> {
        (**self).take(from, tag, deadline)
    }

    fn has_sum(&self, members: &[Rank]) -> bool {
        (**self).has_sum(members)
    }

    fn sum(&mut self, members: &[Rank], tag: Tag, tensor: T) -> Result<(), CommError> {
        (**self).sum(members, tag, tensor)
    }

    fn exchange(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>, CommError> {
        (**self).exchange(bytes, deadline)
    }

    fn publish(&mut self, position: Position) {
        (**self).publish(position);
    }

    fn positions(&mut self, deadline: Instant) -> Vec<Option<Position>> {
        (**self).positions(deadline)
    }

    fn abort(&mut self, cause: &Fault) {
        (**self).abort(cause);
    }
}
