//! Why a run ends, in the form that error files and exit codes need.

use std::cell::RefCell;
use std::fmt;

use chimera_schedule::ids::{BucketId, Rank};
use chimera_schedule::op::Op;
use serde::{Deserialize, Serialize};

/// The classes of failure; each has an exit code of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Usage, configuration, or bad input before the start.
    Usage,
    /// An unreadable or unproven schedule.
    Schedule,
    /// A checkpoint that cannot be used.
    Checkpoint,
    /// A peer is gone.
    PeerLost,
    /// A peer did not answer in time.
    Timeout,
    /// A loss or gradient is not finite.
    NonFinite,
    /// A device or the host is out of memory.
    OutOfMemory,
    /// Files or disk failed while running.
    Io,
    /// Ranks disagree on version or configuration.
    Mismatch,
    /// A rank made no progress, and the others went on without it.
    Evicted,
    /// The run was asked to stop, and saved what it had.
    Requeue,
    /// A device failed, or the program itself is wrong.
    Internal,
}

impl Class {
    /// Every class, with its exit code and what that tells a script.
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

    /// The exit code of a rank that fails so.
    pub fn code(self) -> u8 {
        Class::ALL.iter().find(|(class, ..)| *class == self).map_or(101, |(_, code, _)| *code)
    }
}

/// What went wrong, where.
#[derive(Clone, PartialEq, Debug, thiserror::Error, Serialize, Deserialize)]
pub struct Fault {
    /// What kind of failure.
    pub class: Class,
    /// The rank that saw it.
    pub rank: Rank,
    /// The step it happened in.
    pub step: Option<u64>,
    /// The op, in words.
    pub op: Option<String>,
    /// The other rank it involves.
    pub peer: Option<Rank>,
    /// What happened and what to do.
    pub message: String,
}

impl Fault {
    /// A fault that `rank` saw.
    pub fn new(class: Class, rank: Rank, message: impl Into<String>) -> Fault {
        Fault { class, rank, step: None, op: None, peer: None, message: message.into() }
    }

    /// Whether it is that another rank has died or was evicted, which others may survive where what it held is held elsewhere.
    pub fn is_death(&self) -> bool {
        matches!(self.class, Class::PeerLost | Class::Evicted) && self.peer.is_some()
    }
}

/// What a caller's function says in words goes on as a fault, whose rank the engine fills in.
impl From<String> for Fault {
    fn from(message: String) -> Fault {
        Fault::new(Class::Usage, Rank(0), message)
    }
}

/// What a caller's function says in words goes on as a fault, whose rank the engine fills in.
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

/// What a rank does in the code of a caller's stage, device, data or optimizer, for the fault of a panic in it.
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

/// While it lives, and after a panic that ended it, its thread knows what was under way.
pub(crate) struct UnderwayGuard(());

impl Underway {
    /// Notes on this thread that it has begun, in `step`.
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

/// The fault of a rank whose code panicked: a bug. With the step and the op that it panicked in, if it is called on the thread that
/// panicked and this was in an op.
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
