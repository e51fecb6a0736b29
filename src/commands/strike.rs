//! Where a test has a rank struck by a signal, or panic: at an instruction, behind a message, before an exchange, at a
//! change of the file system.
//!
//! The environment says which rank, by what and where, such as `CHIMERA_STRIKE="2 KILL at 3.7 FILE"`; FILE is made
//! at that moment. Only builds with debug assertions hold this module: in others the transport and the disk are
//! as they are.

use std::env;
use std::fs::File;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use chimera::checkpoint::Disk;
use chimera::core::comm::{Comm, CommError, Host, Position, Tag};
use chimera::core::fault::Fault;
use chimera::core::ids::Rank;
use chimera::launch::Launch;
use nix::sys::signal::{Signal, raise};

/// By what and where.
struct Plan {
    /// None for a panic.
    signal: Option<Signal>,
    point: String,
    file: PathBuf,
}

/// What the environment says.
fn plan() -> Option<&'static Plan> {
    static PLAN: OnceLock<Option<Plan>> = OnceLock::new();
    let read = || {
        let text = env::var("CHIMERA_STRIKE").ok()?;
        let (rank, rest) = text.split_once(' ')?;
        Launch::found().filter(|launch| launch.rank.to_string() == rank)?;
        let (signal, rest) = rest.split_once(' ')?;
        let (point, file) = rest.rsplit_once(' ')?;
        let signal = match signal {
            "PANIC" => None,
            name => Some(format!("SIG{name}").parse().ok()?),
        };
        Some(Plan { signal, point: point.into(), file: file.into() })
    };
    PLAN.get_or_init(read).as_ref()
}

/// Here this rank is struck, if that is the `point` of the test.
pub(super) fn at(point: impl FnOnce() -> String) {
    if let Some(plan) = plan()
        && plan.point == point()
    {
        let _ = File::create(&plan.file);
        let Some(signal) = plan.signal else { panic!("struck") };
        let _ = raise(signal);
    }
}

/// The disk of checkpoints, which strikes before its changes: `disk 0` and so on.
pub(super) fn disk() -> Disk {
    let n_changes = AtomicU32::new(0);
    Disk::gated(move |_, _| {
        let n = n_changes.fetch_add(1, Ordering::Relaxed);
        at(|| format!("disk {n}"));
        Ok(())
    })
}

/// A transport that strikes: `at STEP.INSTRUCTION` before an instruction; counted from there, or from the
/// `start`, `sent PLACE N` behind a message and `exchange PLACE N` before an exchange.
pub(super) struct Struck<'c> {
    inner: &'c mut dyn Comm<Host>,
    position: Position,
    n_sent: u32,
    n_exchanges: u32,
}

impl<'c> Struck<'c> {
    pub(super) fn new(inner: &'c mut dyn Comm<Host>) -> Struck<'c> {
        Struck { inner, position: Position::Start, n_sent: 0, n_exchanges: 0 }
    }

    fn place(&self) -> String {
        match self.position {
            Position::Start => "start".into(),
            Position::At { step, instr } => format!("{step}.{instr}"),
        }
    }
}

impl Comm<Host> for Struck<'_> {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn n_ranks(&self) -> u32 {
        self.inner.n_ranks()
    }

    fn send(&mut self, to: Rank, tag: Tag, tensor: Host) -> Result<(), CommError> {
        self.inner.send(to, tag, tensor)?;
        at(|| format!("sent {} {}", self.place(), self.n_sent));
        self.n_sent += 1;
        Ok(())
    }

    fn post(&mut self, from: Rank, tag: Tag) -> Result<(), CommError> {
        self.inner.post(from, tag)
    }

    fn try_take(&mut self, from: Rank, tag: Tag) -> Result<Option<Host>, CommError> {
        self.inner.try_take(from, tag)
    }

    fn take(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<Host, CommError> {
        self.inner.take(from, tag, deadline)
    }

    fn has_sum(&self, members: &[Rank]) -> bool {
        self.inner.has_sum(members)
    }

    fn sum(&mut self, members: &[Rank], tag: Tag, tensor: Host) -> Result<(), CommError> {
        self.inner.sum(members, tag, tensor)?;
        at(|| format!("sent {} {}", self.place(), self.n_sent));
        self.n_sent += 1;
        Ok(())
    }

    fn exchange(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>, CommError> {
        at(|| format!("exchange {} {}", self.place(), self.n_exchanges));
        self.n_exchanges += 1;
        self.inner.exchange(bytes, deadline)
    }

    fn publish(&mut self, position: Position) {
        self.inner.publish(position);
        (self.position, self.n_sent, self.n_exchanges) = (position, 0, 0);
        at(|| format!("at {}", self.place()));
    }

    fn positions(&mut self, deadline: Instant) -> Vec<Option<Position>> {
        self.inner.positions(deadline)
    }

    fn abort(&mut self, cause: &Fault) {
        self.inner.abort(cause);
    }
}
