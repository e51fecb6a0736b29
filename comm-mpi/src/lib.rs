//! Chimera's messages over MPI.
//!
//! [`Mpi`] is one process's end of a job that `mpirun` or `srun` started: a [`Comm`] of [`Host`] tensors
//! (`HostStaged` makes it one of a device's). Nothing of MPI is used but non-blocking messages, so any
//! library that can be called by one thread after another (`MPI_THREAD_SERIALIZED`) will do.
//!
//! Two threads share MPI, and a lock says who may call it. A thread of its own lets MPI proceed while the
//! engine computes; it sleeps when there is nothing to do. Where the engine waits for a message, it tends
//! MPI itself, and a message costs no change of threads. Every message is received as soon as it is
//! announced, into memory of its own.
//!
//! A process that dies is noticed by its peers on the same machine, within a quarter of a second; waits for
//! whatever rank then end with [`CommError::Lost`], which names the dead one. One that dies on another
//! machine is the launcher's to tell.

#![allow(unsafe_code)] // MPI is C; see `wire`

mod letter;
mod peers;
mod shared;
mod tend;
mod wire;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use chimera_core::comm::{Comm, CommError, Host, Position, Tag};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;

use letter::Letter;
use peers::{Process, Watched};
use shared::{Letters, Progress, Shared};
use tend::Rest;
use wire::Wire;

/// To start up, all ranks together.
const START: Duration = Duration::from_secs(60);
/// A rank that did not look for so long was itself stopped, perhaps with its machine: the time is not its peers'.
const SUSPENDED: Duration = Duration::from_secs(1);
/// For the last words to all others, where a run fails.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// This process's end of the job. It is left by [`close`](Mpi::close); one that is dropped while its thread
/// panics ends all ranks.
pub struct Mpi {
    me: Rank,
    n_ranks: u32,
    shared: Arc<Shared>,
    watched: Arc<Watched>,
    tending: Option<JoinHandle<()>>,
    n_exchanges: u64,
    n_questions: u64,
}

/// Sees from any thread, such as a handler of signals, whether the job goes on.
#[derive(Clone)]
pub struct Lookout {
    me: Rank,
    shared: Arc<Shared>,
    watched: Arc<Watched>,
}

impl Lookout {
    /// Why the job is over, if a rank has said so or was found dead: the first cause that came here.
    pub fn why_over(&self) -> Option<CommError> {
        let letters = self.shared.letters();
        if let Some(error) = &letters.ended {
            return Some(error.clone());
        }
        let known = letters.dead.first().copied();
        let found = || self.watched.dead().find(|rank| !letters.gone.contains(rank));
        let from = known.or_else(found)?;
        Some(CommError::Lost { from, what: format!("all that {} needs", self.me) })
    }
}

/// Lets MPI's own all-reduce do the sums over replicas, in place of core's messages.
pub struct Sums(Arc<Shared>);

impl Sums {
    /// Prepares the sums over each of `groups`. All ranks call it with the same, before any is summed over, and it
    /// waits for them, however long that takes.
    ///
    /// # Errors
    /// If MPI refuses.
    pub fn open(&self, groups: &[Vec<Rank>]) -> Result<(), CommError> {
        for members in groups.iter().map(|members| sorted(members)) {
            if members.len() > 1 && !self.0.sums().contains(&members) {
                self.0.open_sums(members)?;
            }
        }
        Ok(())
    }
}

impl Mpi {
    /// Starts MPI and meets all other ranks; once in a process, which its launcher has started with them.
    pub fn start() -> Result<Mpi, CommError> {
        let wire = Wire::open().map_err(CommError::Failed)?;
        let (me, n_ranks) = (wire.me, wire.n_ranks);
        let shared = Arc::new(Shared::new(wire));
        let mut mpi = Mpi {
            me,
            n_ranks,
            shared,
            watched: Arc::default(),
            tending: None,
            n_exchanges: 0,
            n_questions: 0,
        };
        let failed = |reason: String| CommError::Failed(reason);
        let own = serde_json::to_vec(&Process::me()).map_err(|e| failed(e.to_string()))?;
        let all = mpi.exchange(&own, Instant::now() + START)?;
        let read = |(from, bytes): (u32, &Vec<u8>)| {
            let unreadable = |e: serde_json::Error| CommError::Unreadable {
                from: Rank(from),
                reason: e.to_string(),
            };
            serde_json::from_slice(bytes).map_err(unreadable)
        };
        let all = (0..).zip(&all).map(read).collect::<Result<Vec<Process>, _>>()?;
        mpi.watched = Arc::new(Watched::of(me, &all));
        let (shared, watched) = (Arc::clone(&mpi.shared), Arc::clone(&mpi.watched));
        let tending = Builder::new().name("mpi".into()).spawn(move || tend::run(&shared, &watched));
        mpi.tending = Some(tending.map_err(|e| failed(format!("cannot start a thread: {e}")))?);
        Ok(mpi)
    }

    /// The library in words, such as `Open MPI v4.1.4`.
    pub fn library() -> String {
        let text = Wire::library();
        text.split(['\n', ','])
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Lets MPI sum by itself.
    pub fn sums(&self) -> Sums {
        Sums(Arc::clone(&self.shared))
    }

    /// Sees from other threads whether the job goes on.
    pub fn lookout(&self) -> Lookout {
        let (shared, watched) = (Arc::clone(&self.shared), Arc::clone(&self.watched));
        Lookout { me: self.me, shared, watched }
    }

    /// Leaves the job when all ranks do, and waits for them for so long.
    ///
    /// # Errors
    /// Names a rank that has died or does not leave. MPI is then left as it is: the process should end.
    pub fn close(&mut self, patience: Duration) -> Result<(), CommError> {
        let Some(tending) = self.tending.take() else { return Ok(()) };
        let deadline = Instant::now() + patience;
        let said = self.others().try_for_each(|to| self.shared.send(to, Letter::Bye).map(drop));
        let left = said.and_then(|()| self.await_others(deadline));
        self.shared.is_over.store(true, Ordering::Release);
        tending.thread().unpark();
        let ended = tending.join();
        left?;
        match (ended, self.shared.take_wire()) {
            (Ok(()), Some(wire)) => wire.close().map_err(CommError::Failed),
            _ => Err(CommError::Failed("the thread that tends MPI died".into())),
        }
    }

    /// Ends all processes of the job at once, with this exit code.
    pub fn end_job(&self, code: u8) {
        self.shared.abort_job(code);
    }

    /// Waits until all others that live have said good-bye, and have all that was sent to them.
    fn await_others(&self, deadline: Instant) -> Result<(), CommError> {
        let began = Instant::now();
        let mut rest = Rest::before(64, 256, Duration::from_micros(50));
        loop {
            let progress = self.shared.progress();
            let (missing, dead) = {
                let letters = self.shared.letters();
                let has_left =
                    |rank: &Rank| letters.gone.contains(rank) || letters.dead.contains(rank);
                (self.others().find(|rank| !has_left(rank)), letters.dead.first().copied())
            };
            let what = "its good-bye".to_string();
            match dead {
                // Looked at last: nobody who has left asks for an answer any more.
                None if missing.is_none() && self.shared.is_idle() => return Ok(()),
                // What was sent to the dead stays under way.
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

    /// Sends, and wakes the thread that tends MPI if that is not all.
    fn post_letter(&self, to: Rank, letter: Letter) -> Result<(), CommError> {
        if to.0 >= self.n_ranks {
            let n = self.n_ranks;
            return Err(CommError::Failed(format!("{to} is not one of the {n} ranks")));
        }
        self.wake(self.shared.send(to, letter)?);
        Ok(())
    }

    /// Wakes the thread that tends MPI if there is something left to do.
    fn wake(&self, progress: Progress) {
        if let Some(tending) = self.tending.as_ref().filter(|_| progress == Progress::Busy) {
            tending.thread().unpark();
        }
    }

    /// Waits until `look` finds something that `from` sends.
    fn wait<R>(
        &self,
        from: Rank,
        what: &dyn Fn() -> String,
        deadline: Instant,
        look: impl Fn(&mut Letters) -> Option<R>,
    ) -> Result<R, CommError> {
        let (mut deadline, mut began, mut looked) = (deadline, None, None);
        let mut rest = Rest::before(64, 256, Duration::from_micros(50));
        let shared = &self.shared;
        let _standing_by = StandingBy::of(shared);
        loop {
            {
                let mut letters = shared.letters();
                if let Some(error) = &letters.ended {
                    return Err(error.clone());
                }
                if let Some(found) = look(&mut letters) {
                    return Ok(found);
                }
                if letters.gone.contains(&from) || letters.dead.contains(&from) {
                    return Err(CommError::Lost { from, what: what() });
                }
                if let Some(dead) = letters.dead.first() {
                    let what = format!("all that it had to; {} of {from} was waited for", what());
                    return Err(CommError::Lost { from: *dead, what });
                }
            }
            let progress = shared.progress();
            // While it spins, a look at the clock would cost as much as one at MPI.
            if progress != Progress::Moved && !rest.is_spinning() {
                let now = Instant::now();
                let waited = now - *began.get_or_insert(now);
                let since = now - looked.replace(now).unwrap_or(now);
                if since > SUSPENDED {
                    deadline += since; // what has come meanwhile must be looked at first
                }
                if now >= deadline {
                    return Err(CommError::Timeout { from, what: what(), waited });
                }
            }
            rest.after(progress);
        }
    }
}

/// The order of replicas is core's; MPI's sums have their own.
fn sorted(members: &[Rank]) -> Vec<Rank> {
    let mut sorted = members.to_vec();
    sorted.sort_unstable();
    sorted
}

/// While the engine waits, the other thread stands by.
struct StandingBy<'s>(&'s Shared);

impl StandingBy<'_> {
    fn of(shared: &Shared) -> StandingBy<'_> {
        shared.set_waiting(true);
        StandingBy(shared)
    }
}

impl Drop for StandingBy<'_> {
    fn drop(&mut self) {
        self.0.set_waiting(false);
    }
}

impl Comm<Host> for Mpi {
    fn rank(&self) -> Rank {
        self.me
    }

    fn n_ranks(&self) -> u32 {
        self.n_ranks
    }

    fn send(&mut self, to: Rank, tag: Tag, tensor: Host) -> Result<(), CommError> {
        if to == self.me {
            self.shared.letters().file_own(to, tag, tensor);
            return Ok(());
        }
        self.post_letter(to, Letter::Tensor(tag, tensor))
    }

    fn post(&mut self, _: Rank, _: Tag) -> Result<(), CommError> {
        Ok(()) // every message is received as soon as it is announced
    }

    fn try_take(&mut self, from: Rank, tag: Tag) -> Result<Option<Host>, CommError> {
        let look = |letters: &mut Letters| match &letters.ended {
            Some(error) => Err(error.clone()),
            None => Ok(letters.tensors.remove(&(from, tag))),
        };
        let found = look(&mut self.shared.letters())?;
        if found.is_some() || self.shared.progress() != Progress::Moved {
            return Ok(found);
        }
        look(&mut self.shared.letters())
    }

    fn take(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<Host, CommError> {
        let what = || tag.what.to_string();
        self.wait(from, &what, deadline, |letters| letters.tensors.remove(&(from, tag)))
    }

    fn has_sum(&self, members: &[Rank]) -> bool {
        self.shared.sums().contains(&sorted(members))
    }

    fn sum(&mut self, members: &[Rank], tag: Tag, tensor: Host) -> Result<(), CommError> {
        self.wake(self.shared.sum(&sorted(members), Letter::Tensor(tag, tensor))?);
        Ok(())
    }

    fn exchange(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>, CommError> {
        let number = self.n_exchanges;
        self.n_exchanges += 1;
        for to in self.others() {
            self.post_letter(to, Letter::Bytes(number, bytes.to_vec()))?;
        }
        let what = || "its part of the agreement".to_string();
        let part = |from| match from == self.me {
            true => Ok(bytes.to_vec()),
            false => {
                self.wait(from, &what, deadline, |letters| letters.bytes.remove(&(from, number)))
            }
        };
        (0..self.n_ranks).map(Rank).map(part).collect()
    }

    fn publish(&mut self, position: Position) {
        self.shared.publish(position);
    }

    fn positions(&mut self, deadline: Instant) -> Vec<Option<Position>> {
        let number = self.n_questions;
        self.n_questions += 1;
        for to in self.others() {
            let _ = self.post_letter(to, Letter::Ask(number)); // who is not asked does not answer
        }
        let mut known = vec![None; self.n_ranks as usize];
        known[self.me.index()] = Some(self.shared.position());
        let mut rest = Rest::before(64, 256, Duration::from_micros(50));
        loop {
            let progress = self.shared.progress();
            let mut letters = self.shared.letters();
            for from in self.others() {
                let answer = letters.answers.remove(&(from, number));
                known[from.index()] = known[from.index()].or(answer);
            }
            let is_silent =
                |rank: &Rank| letters.gone.contains(rank) || letters.dead.contains(rank);
            let mut waited_for =
                self.others().filter(|rank| known[rank.index()].is_none() && !is_silent(rank));
            if waited_for.next().is_none() || Instant::now() >= deadline {
                return known;
            }
            drop(letters);
            rest.after(progress);
        }
    }

    fn abort(&mut self, cause: &Fault) {
        if !self.shared.letters().abort(cause) {
            return;
        }
        for to in self.others() {
            let _ = self.post_letter(to, Letter::Abort(cause.clone())); // who can be told, is
        }
        // MPI has them when they are out of the outbox; whether a dead peer takes its own does not matter.
        let deadline = Instant::now() + LAST_WORDS;
        let mut rest = Rest::before(0, 64, Duration::from_micros(50));
        while !self.shared.is_posted() && Instant::now() < deadline {
            rest.after(self.shared.progress());
        }
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if self.tending.is_none() {
            return;
        }
        if std::thread::panicking() || self.close(LAST_WORDS).is_err() {
            self.end_job(Class::Internal.code());
        }
    }
}
