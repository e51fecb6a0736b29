//! State that the engine's thread and the progress thread share.

use std::collections::VecDeque;
use std::mem::replace;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use chimera_core::comm::{CommError, Host, Message, Position};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;

use crate::endpoint::MpiEndpoint;
use crate::mailbox::Mailbox;

/// The holder of the endpoint's lock may call MPI. Nobody waits for the lock, except at the end of
/// the job and to prepare sums before the first step. It is taken before the other locks, never
/// while one of them is held.
pub(crate) struct Shared {
    wire: Mutex<Option<MpiEndpoint>>,
    /// Messages for MPI: a sender need not wait while the other thread moves a large one.
    outbox: Mutex<VecDeque<(To, Vec<f32>)>>,
    mailbox: Mutex<Mailbox>,
    /// Groups of ranks over which MPI sums, each sorted.
    sums: Mutex<Vec<Vec<Rank>>>,
    /// The engine's progress, for other ranks that ask.
    position: AtomicU64,
    /// Set while the engine waits, and so drives MPI itself.
    pub(crate) is_waiting: AtomicBool,
    /// Set when the progress thread is to end.
    pub(crate) is_over: AtomicBool,
    /// The progress thread.
    tending: Mutex<Option<JoinHandle<()>>>,
    /// Whether the job survives deaths of ranks.
    pub(crate) survives: bool,
}

/// The purpose of words in the outbox.
enum To {
    /// A message to this rank.
    Rank(Rank),
    /// This rank's part of a sum over these ranks, with a footer.
    Sum(Vec<Rank>),
}

/// The result of an attempt to let MPI make progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// Something happened.
    Moved,
    /// Nothing happened, though messages are under way or the other thread is at work.
    Busy,
    /// There is nothing to do.
    Idle,
}

impl Shared {
    pub(crate) fn new(wire: MpiEndpoint) -> Shared {
        Shared {
            survives: wire.survives(),
            tending: Mutex::default(),
            wire: Mutex::new(Some(wire)),
            outbox: Mutex::default(),
            mailbox: Mutex::default(),
            sums: Mutex::default(),
            position: AtomicU64::new(Position::Start.to_bits()),
            is_waiting: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        }
    }

    pub(crate) fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        lock(&self.mailbox)
    }

    /// Starts sending a message. Returns what is left to do for it.
    pub(crate) fn send(&self, to: Rank, message: Message) -> Result<Progress, CommError> {
        let words = message.into_words().map_err(CommError::Failed)?;
        Ok(self.put(To::Rank(to), words))
    }

    /// Starts a sum over `members`, which arrives as a message of this rank to itself.
    pub(crate) fn sum(&self, members: &[Rank], part: Message) -> Result<Progress, CommError> {
        let words = part.into_words().map_err(CommError::Failed)?;
        Ok(self.put(To::Sum(members.to_vec()), words))
    }

    /// Makes a communicator for sums over `members`, if this rank is one of them. Its members call
    /// this in the same order, and wait for each other.
    pub(crate) fn open_sums(&self, members: Vec<Rank>) -> Result<(), CommError> {
        match &mut *lock(&self.wire) {
            Some(wire) if !members.contains(&wire.me) => {}
            Some(wire) => {
                // Others may wait for messages in the outbox, and never come to meet this rank.
                self.post(wire).map_err(CommError::Failed)?;
                wire.open_sums(&members).map_err(CommError::Failed)?;
            }
            None => return Err(CommError::Failed("MPI is over".into())),
        }
        self.sums().push(members);
        Ok(())
    }

    /// Accepts messages with tensors of up to `n_elements` elements.
    pub(crate) fn expect_tensors(&self, n_elements: usize) {
        if let Some(wire) = &mut *lock(&self.wire) {
            wire.expect(n_elements);
        }
    }

    /// Returns the groups of ranks over which MPI sums, each sorted.
    pub(crate) fn sums(&self) -> MutexGuard<'_, Vec<Vec<Rank>>> {
        lock(&self.sums)
    }

    fn put(&self, to: To, words: Vec<f32>) -> Progress {
        lock(&self.outbox).push_back((to, words));
        match self.try_wire() {
            Some(mut wire) => self.with(&mut wire, |wire| self.post(wire).map(|()| false)),
            None => Progress::Busy,
        }
    }

    /// Lets MPI make progress, unless the other thread does.
    pub(crate) fn progress(&self) -> Progress {
        let Some(mut wire) = self.try_wire() else { return Progress::Busy };
        self.with(&mut wire, |wire| {
            self.post(wire)?;
            let moved = wire.progress(|from, received| {
                let mut mailbox = lock(&self.mailbox);
                match received {
                    Ok(words) => mailbox.take(from, words),
                    Err(reason) => {
                        mailbox.inbox.end(CommError::Unreadable { from, reason });
                    }
                }
            })?;
            let mut mailbox = lock(&self.mailbox);
            let mailbox = &mut *mailbox;
            for (to, number) in mailbox.asked.drain(..) {
                let position = self.position.load(Ordering::Relaxed);
                wire.send(to, Message::Where(number, position).into_words()?)?;
            }
            if mailbox.evicted.contains(&wire.me) {
                mailbox.inbox.end(CommError::Aborted(evicted(wire.me)));
            }
            if mailbox.is_stopping
                && wire.me == Rank(0)
                && !replace(&mut mailbox.has_passed_on, true)
            {
                let has_left =
                    |rank: &Rank| mailbox.gone.contains(rank) || mailbox.leaving.contains(rank);
                let mut others = (1..wire.n_ranks).map(Rank).filter(|rank| !has_left(rank));
                others.try_for_each(|to| wire.send(to, Message::Stop.into_words()?))?;
            }
            mailbox.leaving.retain(|rank| {
                let stays = wire.is_receiving_from(*rank);
                if !stays {
                    mailbox.gone.push(*rank);
                }
                stays
            });
            Ok(moved)
        })
    }

    /// Returns true if MPI has been given all messages.
    pub(crate) fn is_posted(&self) -> bool {
        lock(&self.outbox).is_empty()
    }

    /// Returns true if no message is under way, which is only known while the other thread is idle.
    pub(crate) fn is_idle(&self) -> bool {
        let wire = self.try_wire();
        wire.is_some_and(|wire| !wire.as_ref().is_some_and(MpiEndpoint::has_messages))
            && self.is_posted()
    }

    /// Takes the endpoint out, once the other thread has released it.
    pub(crate) fn take_wire(&self) -> Option<MpiEndpoint> {
        lock(&self.wire).take()
    }

    /// Keeps the progress thread's handle.
    pub(crate) fn keep(&self, tending: JoinHandle<()>) {
        *lock(&self.tending) = Some(tending);
    }

    /// Ends the progress thread. Returns true if it did not panic.
    pub(crate) fn end_tending(&self) -> bool {
        self.is_over.store(true, Ordering::Release);
        let Some(tending) = lock(&self.tending).take() else { return true };
        tending.thread().unpark();
        tending.join().is_ok()
    }

    /// Ends the waits of all ranks because of a death, which they survive.
    pub(crate) fn revoke(&self) {
        if let Some(wire) = &*lock(&self.wire) {
            wire.revoke();
        }
    }

    /// Ends the transport after a death: from now on only this thread calls MPI.
    pub(crate) fn retire(&self) {
        self.end_tending();
        if let Some(wire) = self.take_wire() {
            wire.revoke();
            wire.let_go();
        }
    }

    /// Ends all ranks at once, if MPI can be reached.
    pub(crate) fn abort_job(&self, code: u8) {
        for _ in 0..100 {
            if let Some(wire) = self.try_wire() {
                return wire.as_ref().map_or((), |wire| wire.abort(code));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Hands the messages in the outbox to MPI.
    fn post(&self, wire: &mut MpiEndpoint) -> Result<(), String> {
        loop {
            let next = lock(&self.outbox).pop_front();
            match next {
                Some((To::Rank(to), words)) => wire.send(to, words)?,
                Some((To::Sum(members), words)) => {
                    wire.sum(&members, words.len() - Host::ROOM, words)?;
                }
                None => return Ok(()),
            }
        }
    }

    /// Calls `work` on the endpoint. A failure ends all waits.
    fn with(
        &self,
        wire: &mut Option<MpiEndpoint>,
        work: impl FnOnce(&mut MpiEndpoint) -> Result<bool, String>,
    ) -> Progress {
        let Some(wire) = wire else { return Progress::Idle };
        match work(wire) {
            Ok(true) => Progress::Moved,
            Ok(false) if wire.is_busy() => Progress::Busy,
            Ok(false) => Progress::Idle,
            Err(reason) => {
                if self.mailbox().inbox.check().is_ok() {
                    let cause = wire.cause(reason);
                    self.mailbox().inbox.end(cause);
                }
                Progress::Idle
            }
        }
    }

    fn try_wire(&self) -> Option<MutexGuard<'_, Option<MpiEndpoint>>> {
        match self.wire.try_lock() {
            Ok(wire) => Some(wire),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn publish(&self, position: Position) {
        self.position.store(position.to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn position(&self) -> Position {
        Position::from_bits(self.position.load(Ordering::Relaxed))
    }

    pub(crate) fn set_waiting(&self, waits: bool) {
        self.is_waiting.store(waits, Ordering::Relaxed);
    }
}

/// The fault of an evicted rank, which it learns when it wakes.
fn evicted(me: Rank) -> Fault {
    let why = "it made no progress while others waited for it, and they go on without it";
    Fault::new(Class::Evicted, me, why)
}

/// Locks a mutex. A thread that panicked leaves no half-written state under a lock of this crate.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
