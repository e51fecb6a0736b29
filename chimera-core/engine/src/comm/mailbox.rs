//! Messages that have arrived: the inbox of a rank, and mailboxes for transports that receive on
//! other threads than the rank's.

use std::fmt::Display;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chimera_schedule::ids::Rank;
use rustc_hash::FxHashMap;

use super::{CommError, Host, Message, Tag};
use crate::fault::Fault;

/// Messages that have arrived at a rank and are not taken yet, and the cause that ends its waits.
pub struct Inbox<T> {
    tensors: FxHashMap<(Rank, Tag), T>,
    bytes: FxHashMap<Rank, Queue>,
    ended: Option<CommError>,
}

/// Control data of one sender, by number.
#[derive(Default)]
struct Queue {
    arrived: FxHashMap<u64, Vec<u8>>,
    /// Number for the next data that arrives without one.
    next: u64,
    n_taken: u64,
}

impl<T> Default for Inbox<T> {
    fn default() -> Inbox<T> {
        Inbox { tensors: FxHashMap::default(), bytes: FxHashMap::default(), ended: None }
    }
}

impl<T> Inbox<T> {
    /// Puts a tensor in. Returns false if one with the same sender and tag has not been taken yet.
    pub fn put(&mut self, from: Rank, tag: Tag, tensor: T) -> bool {
        self.tensors.insert((from, tag), tensor).is_none()
    }

    /// Puts control data in that arrives in order.
    pub fn put_bytes(&mut self, from: Rank, bytes: Vec<u8>) {
        let queue = self.bytes.entry(from).or_default();
        queue.arrived.insert(queue.next, bytes);
        queue.next += 1;
    }

    /// Takes a tensor out if it has arrived.
    pub fn take(&mut self, from: Rank, tag: Tag) -> Option<T> {
        self.tensors.remove(&(from, tag))
    }

    /// Takes the next control data of a rank if it has arrived.
    pub fn take_bytes(&mut self, from: Rank) -> Option<Vec<u8>> {
        let queue = self.bytes.get_mut(&from)?;
        let bytes = queue.arrived.remove(&queue.n_taken)?;
        queue.n_taken += 1;
        Some(bytes)
    }

    /// Ends every wait with a cause, unless one is known.
    pub fn end(&mut self, cause: CommError) {
        self.ended.get_or_insert(cause);
    }

    /// Ends every wait with a cause, and returns it, or that of an earlier abort.
    pub fn abort(&mut self, cause: &Fault) -> Fault {
        let cause = match &self.ended {
            Some(CommError::Aborted(known)) => known.clone(),
            _ => cause.clone(),
        };
        self.ended = Some(CommError::Aborted(cause.clone()));
        cause
    }

    /// Fails with the cause if all waits have ended.
    pub fn check(&self) -> Result<(), CommError> {
        self.ended.clone().map_or(Ok(()), Err)
    }
}

impl Inbox<Host> {
    /// Files a message; returns one that is neither a tensor nor control data nor an abort. The
    /// error says what is wrong with the message.
    pub fn file(&mut self, from: Rank, message: Message) -> Result<Option<Message>, String> {
        match message {
            Message::Tensor(tag, tensor) => {
                if !self.put(from, tag, tensor) {
                    return Err(format!("{tag} a second time"));
                }
            }
            Message::Bytes(number, bytes) => {
                let arrived = &mut self.bytes.entry(from).or_default().arrived;
                if arrived.insert(number, bytes).is_some() {
                    return Err("control data a second time".into());
                }
            }
            Message::Abort(cause) => self.end(CommError::Aborted(cause)),
            other => return Ok(Some(other)),
        }
        Ok(None)
    }
}

/// The mailbox of one rank. Any thread of the transport puts messages in; the rank takes them.
pub struct Mailbox<T> {
    state: Mutex<Contents<T>>,
    arrived: Condvar,
}

struct Contents<T> {
    inbox: Inbox<T>,
    /// Ranks that will send nothing more, with the reason if they sent something unreadable.
    gone: FxHashMap<Rank, Option<String>>,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Mailbox<T> {
        let state = Contents { inbox: Inbox::default(), gone: FxHashMap::default() };
        Mailbox { state: Mutex::new(state), arrived: Condvar::new() }
    }
}

impl<T> Mailbox<T> {
    /// Puts a tensor in. Returns false if one with the same sender and tag has not been taken yet.
    pub fn put(&self, from: Rank, tag: Tag, tensor: T) -> bool {
        self.change(|state| state.inbox.put(from, tag, tensor))
    }

    /// Appends control data to the queue of its sender.
    pub fn put_bytes(&self, from: Rank, bytes: Vec<u8>) {
        self.change(|state| state.inbox.put_bytes(from, bytes));
    }

    /// Records that a rank will send nothing more: it has ended, or sent `unreadable` data.
    pub fn end(&self, from: Rank, unreadable: Option<String>) {
        self.change(|state| {
            state.gone.entry(from).or_insert(unreadable);
        });
    }

    /// Ends every wait with a cause. The first cause counts.
    pub fn abort(&self, cause: &Fault) {
        self.change(|state| state.inbox.abort(cause));
    }

    /// Fails if the run was aborted.
    ///
    /// # Errors
    /// The cause of the abort.
    pub fn check(&self) -> Result<(), CommError> {
        self.lock().inbox.check()
    }

    /// Returns the error of who waits for `what` from a rank that has ended, unless `is_expected`.
    pub(super) fn why_gone(
        &self,
        from: Rank,
        what: &str,
        is_expected: impl Fn() -> bool,
    ) -> Option<CommError> {
        let reason = self.lock().gone.get(&from)?.clone();
        // Asked last: a good-bye is filed before the end of its sender.
        (!is_expected()).then(|| gone(from, &what, reason))
    }

    /// Takes a tensor out if it has arrived.
    ///
    /// # Errors
    /// The cause of an abort.
    pub fn try_take(&self, from: Rank, tag: Tag) -> Result<Option<T>, CommError> {
        self.look(|inbox| inbox.take(from, tag))
    }

    /// Takes a tensor out, waiting for it until the deadline.
    ///
    /// # Errors
    /// An abort, a sender that has ended, or the deadline.
    pub fn take(&self, from: Rank, tag: Tag, deadline: Instant) -> Result<T, CommError> {
        self.wait(from, &tag, deadline, |inbox| inbox.take(from, tag))
    }

    /// Takes the next control data of a rank if any has arrived.
    ///
    /// # Errors
    /// The cause of an abort.
    pub fn try_take_bytes(&self, from: Rank) -> Result<Option<Vec<u8>>, CommError> {
        self.look(|inbox| inbox.take_bytes(from))
    }

    /// Takes the next control data of a rank, waiting for it until the deadline.
    ///
    /// # Errors
    /// An abort, a sender that has ended, or the deadline.
    pub fn take_bytes(&self, from: Rank, deadline: Instant) -> Result<Vec<u8>, CommError> {
        self.wait(from, &"control data", deadline, |inbox| inbox.take_bytes(from))
    }

    /// Ignores poisoning: no change is ever half done, and a panicking rank aborts the run.
    fn lock(&self) -> MutexGuard<'_, Contents<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<R>(&self, change: impl FnOnce(&mut Contents<T>) -> R) -> R {
        let changed = change(&mut self.lock());
        self.arrived.notify_all();
        changed
    }

    /// Returns what `look` finds now.
    fn look<R>(&self, look: impl Fn(&mut Inbox<T>) -> Option<R>) -> Result<Option<R>, CommError> {
        let inbox = &mut self.lock().inbox;
        inbox.check().map(|()| look(inbox))
    }

    /// Waits until `look` finds something.
    fn wait<R>(
        &self,
        from: Rank,
        what: &dyn Display,
        deadline: Instant,
        look: impl Fn(&mut Inbox<T>) -> Option<R>,
    ) -> Result<R, CommError> {
        let began = Instant::now();
        let mut state = self.lock();
        loop {
            state.inbox.check()?;
            if let Some(found) = look(&mut state.inbox) {
                return Ok(found);
            }
            if let Some(reason) = state.gone.get(&from) {
                return Err(gone(from, what, reason.clone()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                let (what, waited) = (what.to_string(), began.elapsed());
                return Err(CommError::Timeout { from, what, waited });
            }
            let waited = self.arrived.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The error of who waits for `what` from a rank that has ended, or sent unreadable data.
fn gone(from: Rank, what: &dyn Display, unreadable: Option<String>) -> CommError {
    match unreadable {
        Some(reason) => CommError::Unreadable { from, reason },
        None => CommError::Lost { from, what: what.to_string() },
    }
}

impl Mailbox<Host> {
    /// Files a message as [`Inbox::file`] does.
    pub(super) fn file(&self, from: Rank, message: Message) -> Result<Option<Message>, String> {
        self.change(|state| state.inbox.file(from, message))
    }
}
