//! Fault injection for tests: a rank gets a signal or panics at an instruction, after a message, in
//! an all-gather, or at a change of the file system.
//!
//! The environment variable names rank, signal and point, such as `CHIMERA_STRIKE="2 KILL at 3.7
//! FILE"`, with `;` between several faults. FILE is created at that moment. Only builds with debug
//! assertions have this module; in others the transport and the disk are unchanged.

use std::env;
use std::fs::File;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use chimera_core::comm::{
    AllReduce, Comm, CommError, Endpoint, Evict, Host, Liveness, Position, Tag, Traffic, reducer_of,
};
use chimera_core::fault::Fault;
use chimera_core::ids::Rank;
use nix::sys::signal::{Signal, raise};

use crate::formats::checkpoint::Disk;
use crate::run::launch::Launch;

/// A fault: its signal, its point, and the file to create.
struct Injection {
    /// The signal; `None` for a panic.
    signal: Option<Signal>,
    point: String,
    file: PathBuf,
}

static THIS: OnceLock<Option<Rank>> = OnceLock::new();

/// Sets the rank of this process if the launcher does not. A replacement of a dead rank gets no
/// fault.
pub(super) fn this_is(rank: Rank, is_replacement: bool) {
    let _ = THIS.set(Some(rank).filter(|_| !is_replacement));
}

/// Returns the fault for this rank, or, until the rank is set, for the rank according to the
/// launcher.
fn plan() -> Option<&'static Injection> {
    static PLANS: [OnceLock<Option<Injection>>; 2] = [const { OnceLock::new() }; 2];
    let launched = || Launch::found().map(|launch| Rank(launch.rank));
    let (nth, this) = match THIS.get() {
        Some(this) => (0, *this),
        None => (1, launched()),
    };
    PLANS[nth].get_or_init(|| this.and_then(planned)).as_ref()
}

/// Parses the first fault for a rank from the environment.
fn planned(this: Rank) -> Option<Injection> {
    let text = env::var("CHIMERA_STRIKE").ok()?;
    let mut all = text.split(';').filter_map(|one| one.trim().split_once(' '));
    let (_, rest) = all.find(|(rank, _)| rank.parse() == Ok(this.0))?;
    let (signal, rest) = rest.split_once(' ')?;
    let (point, file) = rest.rsplit_once(' ')?;
    let signal = match signal {
        "PANIC" => None,
        name => Some(format!("SIG{name}").parse().ok()?),
    };
    Some(Injection { signal, point: point.into(), file: file.into() })
}

/// Triggers the fault of this rank if `point` is the one it is planned for.
pub(super) fn at(point: impl FnOnce() -> String) {
    if let Some(plan) = plan()
        && plan.point == point()
    {
        let _ = File::create(&plan.file);
        let Some(signal) = plan.signal else { panic!("struck") };
        let _ = raise(signal);
    }
}

/// The disk of checkpoints, with faults before its changes: `disk 0` and so on.
pub(super) fn disk() -> Disk {
    let n_changes = AtomicU32::new(0);
    Disk::gated(move |_, _| {
        let n = n_changes.fetch_add(1, Ordering::Relaxed);
        at(|| format!("disk {n}"));
        Ok(())
    })
}

/// A transport with faults: `at STEP.INSTRUCTION` is before an instruction. `sent PLACE N` is after
/// a message and `gather PLACE N` before a message of an all-gather, counted from an instruction or
/// from `start`.
pub(super) struct Struck<'c> {
    inner: &'c mut dyn Comm<Host>,
    position: Position,
    n_sent: u32,
    n_gathered: u32,
}

impl<'c> Struck<'c> {
    pub(super) fn new(inner: &'c mut dyn Comm<Host>) -> Struck<'c> {
        Struck { inner, position: Position::Start, n_sent: 0, n_gathered: 0 }
    }

    fn place(&self) -> String {
        match self.position {
            Position::Start => "start".into(),
            Position::At { step, instr } => format!("{step}.{instr}"),
        }
    }

    fn sent(&mut self) {
        at(|| format!("sent {} {}", self.place(), self.n_sent));
        self.n_sent += 1;
    }
}

impl Liveness for Struck<'_> {
    fn report_progress(&mut self, position: Position) {
        self.inner.report_progress(position);
        (self.position, self.n_sent, self.n_gathered) = (position, 0, 0);
        at(|| format!("at {}", self.place()));
    }

    fn query_progress(&mut self, deadline: Instant) -> Result<Vec<Option<Position>>, CommError> {
        self.inner.query_progress(deadline)
    }

    fn evictor(&mut self, rank: Rank) -> Option<&mut dyn Evict> {
        self.inner.evictor(rank)
    }

    fn pause(&mut self, time: Duration) {
        self.inner.pause(time);
    }

    fn request_stop(&mut self) {
        self.inner.request_stop();
    }

    fn stop_requested(&self) -> Option<bool> {
        self.inner.stop_requested()
    }
}

impl Endpoint for Struck<'_> {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn n_ranks(&self) -> u32 {
        self.inner.n_ranks()
    }

    fn send_bytes(&mut self, to: Rank, bytes: Vec<u8>) -> Result<(), CommError> {
        at(|| format!("gather {} {}", self.place(), self.n_gathered));
        self.n_gathered += 1;
        self.inner.send_bytes(to, bytes)
    }

    fn try_recv_bytes(&mut self, from: Rank) -> Result<Option<Vec<u8>>, CommError> {
        self.inner.try_recv_bytes(from)
    }

    fn recv_bytes(&mut self, from: Rank, deadline: Instant) -> Result<Vec<u8>, CommError> {
        self.inner.recv_bytes(from, deadline)
    }

    fn abort(&mut self, cause: &Fault) {
        self.inner.abort(cause);
    }

    fn take_traffic(&mut self) -> Vec<(Rank, Traffic)> {
        self.inner.take_traffic()
    }
}

impl Comm<Host> for Struck<'_> {
    fn send(&mut self, to: Rank, tag: Tag, tensor: Host) -> Result<(), CommError> {
        self.inner.send(to, tag, tensor)?;
        self.sent();
        Ok(())
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<Host>, CommError> {
        self.inner.try_recv(from, tag)
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<Host, CommError> {
        self.inner.recv(from, tag, deadline)
    }

    fn reducer(&mut self, members: &[Rank]) -> Option<&mut dyn AllReduce<Host>> {
        if self.inner.reducer(members).is_some() { Some(self) } else { None }
    }
}

impl AllReduce<Host> for Struck<'_> {
    fn all_reduce(&mut self, members: &[Rank], tag: Tag, tensor: Host) -> Result<(), CommError> {
        reducer_of(self.inner, members)?.all_reduce(members, tag, tensor)?;
        self.sent();
        Ok(())
    }
}
