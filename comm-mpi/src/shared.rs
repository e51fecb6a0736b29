//! What the engine's thread and the thread that tends MPI have in common.

use std::collections::VecDeque;
use std::mem::replace;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use chimera_core::comm::{CommError, Position};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;

use crate::endpoint::MpiEndpoint;
use crate::mailbox::Mailbox;
use crate::message::{FOOTER, Message};

/// Whoever has the lock of the wire may call MPI; nobody waits for it, but for the end of all and to prepare sums
/// before the first step. It is taken before the others, never while one of them is held.
pub(crate) struct Shared {
    wire: Mutex<Option<MpiEndpoint>>,
    /// Messages for MPI, put here so that a sender does not wait while the other thread moves a large one.
    outbox: Mutex<VecDeque<(To, Vec<f32>)>>,
    mailbox: Mutex<Mailbox>,
    /// Groups of ranks over which MPI sums, each sorted.
    sums: Mutex<Vec<Vec<Rank>>>,
    /// Where the engine is, for others who ask.
    position: AtomicU64,
    /// Whether the engine waits, and so tends MPI itself.
    pub(crate) is_waiting: AtomicBool,
    /// Whether the other thread is to end.
    pub(crate) is_over: AtomicBool,
    /// The other thread.
    tending: Mutex<Option<JoinHandle<()>>>,
    /// Whether deaths of ranks are survived.
    pub(crate) survives: bool,
}

/// What is to become of words in the outbox.
enum To {
    /// They are a message.
    Rank(Rank),
    /// They are this rank's part of a sum over these, and a footer.
    Sum(Vec<Rank>),
}

/// What became of an attempt to let MPI proceed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// Something happened.
    Moved,
    /// Nothing did, though messages are under way or the other thread is at work.
    Busy,
    /// Nothing is to be done.
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

    /// Puts a message on its way; says what is left to be done for it.
    pub(crate) fn send(&self, to: Rank, message: Message) -> Result<Progress, CommError> {
        let words = message.into_words().map_err(CommError::Failed)?;
        Ok(self.put(To::Rank(to), words))
    }

    /// Starts a sum over `members`; it comes as a message of this rank to itself.
    pub(crate) fn sum(&self, members: &[Rank], part: Message) -> Result<Progress, CommError> {
        let words = part.into_words().map_err(CommError::Failed)?;
        Ok(self.put(To::Sum(members.to_vec()), words))
    }

    /// Lets MPI make a communicator for sums over `members`, if this rank is one of them. They do so in the same order,
    /// and it waits for them.
    pub(crate) fn open_sums(&self, members: Vec<Rank>) -> Result<(), CommError> {
        match &mut *lock(&self.wire) {
            Some(wire) if !members.contains(&wire.me) => {}
            Some(wire) => {
                // Others may still wait for what is in the outbox, and would never come to meet this rank.
                self.post(wire).map_err(CommError::Failed)?;
                wire.open_sums(&members).map_err(CommError::Failed)?;
            }
            None => return Err(CommError::Failed("MPI is over".into())),
        }
        self.sums().push(members);
        Ok(())
    }

    /// Takes messages with tensors of up to so many elements.
    pub(crate) fn expect_tensors(&self, n_elements: usize) {
        if let Some(wire) = &mut *lock(&self.wire) {
            wire.expect(n_elements);
        }
    }

    /// Groups of ranks over which MPI sums, each sorted.
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

    /// Lets MPI proceed, unless the other thread does.
    pub(crate) fn progress(&self) -> Progress {
        let Some(mut wire) = self.try_wire() else { return Progress::Busy };
        self.with(&mut wire, |wire| {
            self.post(wire)?;
            let moved = wire.progress(|from, received| {
                let mut mailbox = lock(&self.mailbox);
                match received {
                    Ok(words) => mailbox.take(from, words),
                    Err(reason) => {
                        mailbox.ended.get_or_insert(CommError::Unreadable { from, reason });
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
                mailbox.ended.get_or_insert_with(|| CommError::Aborted(evicted(wire.me)));
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

    /// Whether MPI has been given all that was sent.
    pub(crate) fn is_posted(&self) -> bool {
        lock(&self.outbox).is_empty()
    }

    /// Whether no message is under way to anyone, as far as is known while the other thread is not at work.
    pub(crate) fn is_idle(&self) -> bool {
        let wire = self.try_wire();
        wire.is_some_and(|wire| !wire.as_ref().is_some_and(MpiEndpoint::has_messages))
            && self.is_posted()
    }

    /// The wire, for its end, when the other thread has let go of it.
    pub(crate) fn take_wire(&self) -> Option<MpiEndpoint> {
        lock(&self.wire).take()
    }

    /// Keeps the other thread, for its end.
    pub(crate) fn keep(&self, tending: JoinHandle<()>) {
        *lock(&self.tending) = Some(tending);
    }

    /// Ends the other thread; returns whether it ended well.
    pub(crate) fn end_tending(&self) -> bool {
        self.is_over.store(true, Ordering::Release);
        let Some(tending) = lock(&self.tending).take() else { return true };
        tending.thread().unpark();
        tending.join().is_ok()
    }

    /// Ends the waits of all ranks for a death, which they survive.
    pub(crate) fn revoke(&self) {
        if let Some(wire) = &*lock(&self.wire) {
            wire.revoke();
        }
    }

    /// Takes the transport out of use after a death: nothing goes by it any more, and this thread alone calls MPI.
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

    /// Hands what waits in the outbox to MPI.
    fn post(&self, wire: &mut MpiEndpoint) -> Result<(), String> {
        loop {
            let next = lock(&self.outbox).pop_front();
            match next {
                Some((To::Rank(to), words)) => wire.send(to, words)?,
                Some((To::Sum(members), words)) => {
                    wire.sum(&members, words.len() - FOOTER, words)?;
                }
                None => return Ok(()),
            }
        }
    }

    /// Works on the wire; a failure ends all waits.
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
                if self.mailbox().check().is_ok() {
                    let cause = wire.cause(reason);
                    self.mailbox().ended.get_or_insert(cause);
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

/// What a rank learns that wakes when the others have given it up.
fn evicted(me: Rank) -> Fault {
    let why = "it made no progress while others waited for it, and they go on without it";
    Fault::new(Class::Evicted, me, why)
}

/// A thread that panicked leaves nothing half-written behind a lock of this crate.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
