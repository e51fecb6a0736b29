//! The engine's communication traits, implemented over MPI.

use std::fmt::Display;
use std::time::{Duration, Instant};

use chimera_core::comm::{
    AllReduce, Comm, CommError, Endpoint, Evict, Host, Inbox, Liveness, Message, Position, Tag,
};
use chimera_core::device::{DeviceError, Dtype};
use chimera_core::fault::Fault;
use chimera_core::ids::Rank;

use crate::control::sorted;
use crate::progress::Backoff;
use crate::shared::{Progress, Shared};
use crate::{LAST_WORDS, Mpi};

/// A rank that did not check for this long was itself stopped, perhaps with its machine. The time
/// does not count against its peers.
const SUSPENDED: Duration = Duration::from_secs(1);

/// Time for an evicted rank to be ended, and for its end to become known on all hosts.
const TO_END: Duration = Duration::from_secs(10);

impl Liveness for Mpi {
    fn report_progress(&mut self, position: Position) {
        self.shared.publish(position);
    }

    fn query_progress(&mut self, deadline: Instant) -> Result<Vec<Option<Position>>, CommError> {
        let number = self.n_questions;
        self.n_questions += 1;
        for to in self.others() {
            let _ = self.post_message(to, Message::Ask(number)); // no question, no answer
        }
        let mut known = vec![None; self.n_ranks as usize];
        known[self.me.index()] = Some(self.shared.position());
        let mut rest = Backoff::before(64, 256, Duration::from_micros(50));
        loop {
            let progress = self.shared.progress();
            let mut mailbox = self.shared.mailbox();
            mailbox.inbox.check()?;
            if let Some(from) = mailbox.dead.first().copied() {
                return Err(CommError::Lost { from, what: "where it is".into() });
            }
            for from in self.others() {
                let answer = mailbox.answers.remove(&(from, number));
                known[from.index()] = known[from.index()].or(answer);
            }
            let is_silent = |rank: &Rank| mailbox.gone.contains(rank);
            let mut waited_for =
                self.others().filter(|rank| known[rank.index()].is_none() && !is_silent(rank));
            if waited_for.next().is_none() || Instant::now() >= deadline {
                return Ok(known);
            }
            drop(mailbox);
            rest.after(progress);
        }
    }

    fn evictor(&mut self, rank: Rank) -> Option<&mut dyn Evict> {
        let is_in_reach = rank != self.me && !self.watched.neighbours(rank).is_empty();
        if self.evicts_stalled && is_in_reach { Some(self) } else { None }
    }

    /// Rank 0 passes the request on, so that no other pair of ranks needs a connection for it.
    fn request_stop(&mut self) {
        if self.me != Rank(0) {
            let _ = self.post_message(Rank(0), Message::Stop); // a failure ends all waits
            return;
        }
        self.shared.mailbox().is_stopping = true;
        self.wake(self.shared.progress());
    }

    fn stop_requested(&self) -> Option<bool> {
        Some(self.shared.mailbox().is_stopping)
    }
}

impl Evict for Mpi {
    /// Asks the ranks on its host to end its process, and waits until its death is seen.
    fn evict(&mut self, rank: Rank) -> bool {
        let told = self.watched.neighbours(rank);
        for to in told.into_iter().chain([rank]) {
            if to == self.me {
                self.shared.mailbox().evicted.push(rank)
            } else {
                drop(self.post_message(to, Message::Evict(rank)))
            }
        }
        let deadline = Instant::now() + TO_END;
        let mut rest = Backoff::before(0, 64, Duration::from_millis(1));
        while !self.shared.mailbox().dead.contains(&rank) {
            if Instant::now() >= deadline {
                return false;
            }
            rest.after(self.shared.progress());
        }
        true
    }
}

impl Endpoint for Mpi {
    fn rank(&self) -> Rank {
        self.me
    }

    fn n_ranks(&self) -> u32 {
        self.n_ranks
    }

    fn send_bytes(&mut self, to: Rank, bytes: Vec<u8>) -> Result<(), CommError> {
        if to == self.me {
            self.shared.mailbox().inbox.put_bytes(to, bytes);
            return Ok(());
        }
        let next = self.n_bytes_sent.entry(to).or_default();
        *next += 1;
        let number = *next - 1;
        self.post_message(to, Message::Bytes(number, bytes))
    }

    fn try_recv_bytes(&mut self, from: Rank) -> Result<Option<Vec<u8>>, CommError> {
        self.look(|inbox| inbox.take_bytes(from))
    }

    fn recv_bytes(&mut self, from: Rank, deadline: Instant) -> Result<Vec<u8>, CommError> {
        self.wait(from, &"control data", deadline, |inbox| inbox.take_bytes(from))
    }

    fn abort(&mut self, cause: &Fault) {
        let cause = self.shared.mailbox().abort(cause);
        let Some(cause) = cause else { return };
        if self.shared.survives && cause.is_death() {
            return self.shared.revoke(); // the others detect the death as this rank did
        }
        for to in self.others() {
            let _ = self.post_message(to, Message::Abort(cause.clone())); // informs all that can be reached
        }
        // MPI has the messages once they leave the outbox; a dead peer need not receive its own.
        let deadline = Instant::now() + LAST_WORDS;
        let mut rest = Backoff::before(0, 64, Duration::from_micros(50));
        while !self.shared.is_posted() && Instant::now() < deadline {
            rest.after(self.shared.progress());
        }
    }
}

impl Comm<Host> for Mpi {
    fn send(&mut self, to: Rank, tag: Tag, tensor: Host) -> Result<(), CommError> {
        if to == self.me {
            let is_first = self.shared.mailbox().inbox.put(to, tag, tensor);
            assert!(is_first, "{to} sent {tag:?} to itself twice");
            return Ok(());
        }
        self.post_message(to, Message::Tensor(tag, tensor))
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<Host>, CommError> {
        self.look(|inbox| inbox.take(from, tag))
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<Host, CommError> {
        self.wait(from, &tag, deadline, |inbox| inbox.take(from, tag))
    }

    fn reducer(&mut self, members: &[Rank]) -> Option<&mut dyn AllReduce<Host>> {
        if self.shared.sums().contains(&sorted(members)) { Some(self) } else { None }
    }
}

impl AllReduce<Host> for Mpi {
    fn all_reduce(&mut self, members: &[Rank], tag: Tag, tensor: Host) -> Result<(), CommError> {
        if tensor.dtype != Dtype::F32 {
            let reason = format!("MPI adds f32 here, not {:?}", tensor.dtype);
            let (device, op) = (Mpi::library(), "all_reduce");
            return Err(DeviceError::Failed { device, op, reason }.into());
        }
        self.wake(self.shared.sum(&sorted(members), Message::Tensor(tag, tensor))?);
        Ok(())
    }
}

impl Mpi {
    /// Returns what `look` finds now, or after MPI has made progress once.
    fn look<R>(
        &self,
        look: impl Fn(&mut Inbox<Host>) -> Option<R>,
    ) -> Result<Option<R>, CommError> {
        let look = |inbox: &mut Inbox<Host>| inbox.check().map(|()| look(inbox));
        let found = look(&mut self.shared.mailbox().inbox)?;
        if found.is_some() || self.shared.progress() != Progress::Moved {
            return Ok(found);
        }
        look(&mut self.shared.mailbox().inbox)
    }

    /// Waits until `look` finds something that `from` sends.
    fn wait<R>(
        &self,
        from: Rank,
        what: &dyn Display,
        deadline: Instant,
        look: impl Fn(&mut Inbox<Host>) -> Option<R>,
    ) -> Result<R, CommError> {
        let began = Instant::now();
        let (mut deadline, mut looked, mut is_late) = (deadline, began, false);
        let mut rest = Backoff::before(64, 256, Duration::from_micros(50));
        let shared = &self.shared;
        let _standing_by = StandingBy::of(shared);
        loop {
            {
                let mut mailbox = shared.mailbox();
                mailbox.inbox.check()?;
                if let Some(found) = look(&mut mailbox.inbox) {
                    return Ok(found);
                }
                if mailbox.gone.contains(&from) || mailbox.dead.contains(&from) {
                    return Err(CommError::Lost { from, what: what.to_string() });
                }
                if let Some(dead) = mailbox.dead.first() {
                    let what =
                        format!("everything it had to; this rank waited for {what} of {from}");
                    return Err(CommError::Lost { from: *dead, what });
                }
            }
            // Only now, because the last arrivals have been looked at.
            if is_late {
                let waited = began.elapsed();
                return Err(CommError::Timeout { from, what: what.to_string(), waited });
            }
            let progress = shared.progress();
            // While it spins, reading the clock would cost as much as polling MPI.
            if progress == Progress::Moved || !rest.is_spinning() {
                let now = Instant::now();
                let since = now - looked;
                looked = now;
                if since > SUSPENDED {
                    deadline += since; // read what has arrived meanwhile first
                }
                is_late = now >= deadline;
            }
            rest.after(progress);
        }
    }
}

/// A guard that keeps the progress thread on standby while the engine waits.
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
