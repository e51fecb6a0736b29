//! Faults: the reasons that a run ends, with the data needed for error files and exit codes.

use std::cell::RefCell;
use std::fmt;

use chimera_schedule::ids::{BucketId, Rank};
use chimera_schedule::op::Op;
use serde::{Deserialize, Serialize};

/// The classes of failure, each with its own exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Wrong usage, configuration or input, found before the start.
    Usage,
    /// A schedule that cannot be read, or fails its proof.
    Schedule,
    /// A checkpoint that cannot be used.
    Checkpoint,
    /// A peer has died.
    PeerLost,
    /// A peer did not answer in time.
    Timeout,
    /// A loss or gradient is not finite.
    NonFinite,
    /// A device or the host is out of memory.
    OutOfMemory,
    /// Failed to access files or the disk during the run.
    Io,
    /// Ranks disagree on version or configuration.
    Mismatch,
    /// A rank made no progress, and the others continued without it.
    Evicted,
    /// The run was asked to stop, and saved its state.
    Requeue,
    /// A device failed, or there is a bug.
    Internal,
}

impl Class {
    /// Every class, with its exit code and its meaning for scripts.
    pub const ALL: [(Class, u8, &'static str); 12] = [
        (Class::Usage, 2, "usage, settings, or data that cannot be trained on"),
        (Class::Schedule, 3, "a schedule file that cannot be parsed or is not safe"),
        (Class::Checkpoint, 4, "checkpoint unusable"),
        (Class::PeerLost, 5, "a peer is gone"),
        (Class::Timeout, 6, "a peer did not answer in time"),
        (Class::NonFinite, 7, "a loss or gradient is not finite"),
        (Class::OutOfMemory, 8, "out of memory"),
        (Class::Io, 9, "files or disk failed while running"),
        (Class::Mismatch, 10, "ranks disagree"),
        (Class::Evicted, 11, "this rank made no progress, and the others go on without it"),
        (Class::Requeue, 75, "stopped on request, the last whole step is saved"),
        (Class::Internal, 101, "a bug, or a device that failed"),
    ];

    /// The exit code of a rank that fails with this class.
    pub fn code(self) -> u8 {
        Class::ALL.iter().find(|(class, ..)| *class == self).map_or(101, |(_, code, _)| *code)
    }
}

/// The failure of a rank, with its circumstances.
#[derive(Clone, PartialEq, Debug, thiserror::Error, Serialize, Deserialize)]
pub struct Fault {
    /// The class of failure.
    pub class: Class,
    /// The rank that observed the failure.
    pub rank: Rank,
    /// The step in which the failure happened.
    pub step: Option<u64>,
    /// The op, in words.
    pub op: Option<String>,
    /// The other rank involved.
    pub peer: Option<Rank>,
    /// Description of the failure and its remedy.
    pub message: String,
}

impl Fault {
    /// A fault observed by `rank`.
    pub fn new(class: Class, rank: Rank, message: impl Into<String>) -> Fault {
        Fault { class, rank, step: None, op: None, peer: None, message: message.into() }
    }

    /// Returns true if the fault is that another rank has died or was evicted, which others may
    /// survive if its state is held elsewhere.
    pub fn is_death(&self) -> bool {
        matches!(self.class, Class::PeerLost | Class::Evicted) && self.peer.is_some()
    }
}

/// Turns a caller's error message into a fault; the engine fills in its rank.
impl From<String> for Fault {
    fn from(message: String) -> Fault {
        Fault::new(Class::Usage, Rank(0), message)
    }
}

/// Turns a caller's error message into a fault; the engine fills in its rank.
impl From<&str> for Fault {
    fn from(message: &str) -> Fault {
        message.to_string().into()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.rank)?;
        if let Some(step) = self.step {
            write!(f, ", step {step}")?;
        }
        if let Some(op) = &self.op {
            write!(f, ", {op}")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// A call into a caller's stage, device, data or optimizer, named in the fault if it panics.
#[derive(Clone, Copy)]
pub(crate) enum Underway {
    /// An op of a stage.
    Op(Op),
    /// The update of a bucket's weights.
    Update(BucketId),
}

thread_local! {
    static UNDERWAY: RefCell<Option<(u64, Underway)>> = const { RefCell::new(None) };
}

/// While this lives, or after a panic drops it, its thread knows the call in progress.
pub(crate) struct UnderwayGuard(());

impl Underway {
    /// Records on this thread that the call has begun, in `step`.
    pub(crate) fn begin(self, step: u64) -> UnderwayGuard {
        UNDERWAY.set(Some((step, self)));
        UnderwayGuard(())
    }
}

impl Drop for UnderwayGuard {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            UNDERWAY.set(None);
        }
    }
}

impl fmt::Display for Underway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Underway::Op(op) => write!(f, "{op}"),
            Underway::Update(bucket) => write!(f, "update of {bucket}"),
        }
    }
}

/// Returns the fault of a rank whose code panicked, which is a bug. Called on the thread that
/// panicked, it includes the step and the op that were running.
pub fn panicked(rank: Rank, panic: &(dyn std::any::Any + Send)) -> Fault {
    let text = panic
        .downcast_ref::<&str>()
        .map(|s| s.to_string())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".into());
    let message = format!(
        "panicked: {text}. This is a bug in the stage, the device, the data or the optimizer, or one of this program"
    );
    let (step, op) = UNDERWAY.take().map(|(step, what)| (step, what.to_string())).unzip();
    Fault { step, op, ..Fault::new(Class::Internal, rank, message) }
}
