//! Chimera's messages over MPI.
//!
//! [`Mpi`] is one process's end of a job that `mpirun` or `srun` started: a
//! [`Comm`](chimera_core::comm::Comm) of host tensors (`HostStaged` wraps it for tensors of a
//! device). It uses only MPI's non-blocking messages, and on request its all-reduce. Any
//! library that threads can call one after another (`MPI_THREAD_SERIALIZED`) will do.
//!
//! Two threads share MPI, and a lock decides which may call it. A progress thread lets MPI proceed
//! while the engine computes, and sleeps when there is nothing to do. While the engine waits for a
//! message it drives MPI itself, so a message costs no change of threads. Every message is received
//! as soon as it is announced, into memory of its own.
//!
//! Peers on the same host notice the death of a process within a quarter of a second. Those on
//! other hosts notice it within a second or two, over connections of their own. All waits then end
//! with [`CommError::Lost`], which names the dead rank.
//!
//! MPI is reached through rsmpi (the crate `mpi`). Its safe layer starts MPI and makes
//! communicators and groups. Messages and sums use its `ffi`, for three reasons. A safe request
//! borrows its buffer within a scope, while a message here owns its memory and outlives the call
//! that sends it. A safe request that is dropped before it is complete panics or blocks. And return
//! codes are discarded, while here each failure ends the waits with its cause. A `Universe` is
//! never dropped: that calls `MPI_Finalize`, which blocks a rank that unwinds from a panic until
//! all others end too.

#![allow(unsafe_code)] // MPI is C; see `endpoint`

mod comm;
mod communicator;
mod control;
mod detection;
mod endpoint;
mod error;
mod mailbox;
mod progress;
mod rendezvous;
mod shared;
mod ulfm;

use detection::links;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, Thread};
use std::time::{Duration, Instant};

use chimera_core::comm::{CommError, Message, Process as _, all_gather_json};
use chimera_core::fault::Class;
use chimera_core::ids::Rank;
use rustc_hash::FxHashMap;

use detection::door::Door;
use detection::links::Links;
use detection::peers::{Process, Watched, firsts};
use endpoint::MpiEndpoint;
use progress::Backoff;
pub use rendezvous::MpiRendezvous;
use shared::{Progress, Shared};

/// Time for the last messages to all others when a run fails.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// This process's end of the job. [`close`](chimera_core::comm::Process::close) leaves the job. Dropping it while its
/// thread panics ends all ranks. The ends that [`MpiRendezvous`] returns are left when the ranks
/// meet.
pub struct Mpi {
    me: Rank,
    n_ranks: u32,
    shared: Arc<Shared>,
    watched: Arc<Watched>,
    tending: Option<Thread>,
    /// Whether stalled ranks are ended.
    evicts_stalled: bool,
    /// Number of control messages so far, by receiver.
    n_bytes_sent: FxHashMap<Rank, u64>,
    n_questions: u64,
}

impl Mpi {
    /// Starts MPI, which is possible once in a process, and waits up to `patience` for all other
    /// ranks of the launcher. Calls `warn` if deaths on other hosts would not be noticed.
    pub fn start(patience: Duration, warn: fn(&str)) -> Result<Mpi, CommError> {
        let mut mpi = Mpi::over(MpiEndpoint::open().map_err(CommError::Failed)?);
        mpi.begin(patience, warn)?;
        Ok(mpi)
    }

    /// Wraps an endpoint; the ranks have not met yet.
    fn over(wire: MpiEndpoint) -> Mpi {
        let (me, n_ranks) = (wire.me, wire.n_ranks);
        let shared = Arc::new(Shared::new(wire));
        Mpi {
            me,
            n_ranks,
            shared,
            watched: Arc::default(),
            tending: None,
            evicts_stalled: false,
            n_bytes_sent: FxHashMap::default(),
            n_questions: 0,
        }
    }

    /// Meets all other ranks, and starts the progress thread.
    fn begin(&mut self, patience: Duration, warn: fn(&str)) -> Result<(), CommError> {
        let deadline = Instant::now() + patience;
        let me = self.me;
        let all = all_gather_json(self, &Process::me(), deadline)?;
        let links = self.open_links(&firsts(&all), deadline, warn)?;
        self.watched = Arc::new(Watched::of(me, &all, links));
        let (shared, watched) = (Arc::clone(&self.shared), Arc::clone(&self.watched));
        let tending =
            Builder::new().name("mpi".into()).spawn(move || progress::run(&shared, &watched));
        let tending = tending.map_err(no_thread)?;
        self.tending = Some(tending.thread().clone());
        self.shared.keep(tending);
        Ok(())
    }

    /// Connects the hosts, if there are several. `firsts` has the first rank on each rank's host.
    fn open_links(
        &mut self,
        firsts: &[Rank],
        deadline: Instant,
        warn: fn(&str),
    ) -> Result<Option<Links>, CommError> {
        let Some(parents) = links::parents(firsts) else { return Ok(None) };
        let me = self.me;
        let is_parent =
            parents.iter().enumerate().any(|(rank, to)| *to == me && rank != me.index());
        let opened = is_parent.then(Door::open).transpose();
        let (own, listener) = opened.map(Option::unzip).unwrap_or_else(|error| {
            warn(&format!("{me} cannot listen for ranks of other hosts: {error}"));
            (None, None)
        });
        let doors = all_gather_json(self, &own.unwrap_or_else(Door::closed), deadline)?;
        Links::open(me, &parents, doors, listener, warn).map(Some).map_err(no_thread)
    }

    /// Returns the library's name and version, such as `Open MPI v4.1.4`.
    pub fn library() -> String {
        let text = mpi::environment::library_version().unwrap_or_default();
        text.split(['\n', ','])
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Sends a good-bye to all others, and waits for theirs.
    fn say_good_bye(&self, patience: Duration) -> Result<(), CommError> {
        let deadline = Instant::now() + patience;
        self.others().try_for_each(|to| self.shared.send(to, Message::Bye).map(drop))?;
        self.await_others(deadline)
    }

    /// Waits until all living ranks have sent a good-bye, and have received all messages.
    fn await_others(&self, deadline: Instant) -> Result<(), CommError> {
        let began = Instant::now();
        let mut rest = Backoff::before(64, 256, Duration::from_micros(50));
        loop {
            let progress = self.shared.progress();
            let (missing, dead) = {
                let mailbox = self.shared.mailbox();
                let has_left =
                    |rank: &Rank| mailbox.gone.contains(rank) || mailbox.dead.contains(rank);
                (self.others().find(|rank| !has_left(rank)), mailbox.dead.first().copied())
            };
            let what = "its good-bye".to_string();
            match dead {
                // Checked last: a rank that has left asks no more questions.
                None if missing.is_none() && self.shared.is_idle() => return Ok(()),
                // Messages to the dead stay under way.
                Some(from) if missing.is_none() => return Err(CommError::Lost { from, what }),
                _ if Instant::now() < deadline => {}
                _ => {
                    let from = missing.unwrap_or(self.me);
                    return Err(CommError::Timeout { from, what, waited: began.elapsed() });
                }
            }
            rest.after(progress);
        }
    }

    fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let me = self.me;
        (0..self.n_ranks).map(Rank).filter(move |rank| *rank != me)
    }

    /// Sends; wakes the progress thread if the message is still in flight.
    fn post_message(&self, to: Rank, message: Message) -> Result<(), CommError> {
        if to.0 >= self.n_ranks {
            let n = self.n_ranks;
            return Err(CommError::Failed(format!("{to} is not one of the {n} ranks")));
        }
        self.wake(self.shared.send(to, message)?);
        Ok(())
    }

    /// Wakes the progress thread if there is something left to do.
    fn wake(&self, progress: Progress) {
        if let Some(tending) = self.tending.as_ref().filter(|_| progress == Progress::Busy) {
            tending.unpark();
        }
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if self.tending.is_none() {
            return;
        }
        if self.shared.survives {
            // At a rendezvous, ranks leave together at the next meeting.
            let is_in_use = !self.shared.is_over.load(Ordering::Acquire);
            if is_in_use && !std::thread::panicking() && self.shared.mailbox().inbox.check().is_ok()
            {
                let _ = self.say_good_bye(LAST_WORDS); // others learn of it at the next meeting
            }
            return;
        }
        if std::thread::panicking() || self.close(LAST_WORDS).is_err() {
            self.end_job(Class::Internal.code());
        }
    }
}

fn no_thread(error: std::io::Error) -> CommError {
    CommError::Failed(format!("cannot start a thread: {error}"))
}
