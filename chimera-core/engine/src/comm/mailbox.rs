//! Mailboxes, for transports that receive on other threads than the rank's.

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chimera_schedule::ids::Rank;
use rustc_hash::FxHashMap;

use super::{CommError, Tag};
use crate::fault::Fault;

/// The mailbox of one rank. Any thread of the transport puts messages in; the rank takes them.
pub struct Mailbox<T> {
    inbox: Mutex<Inbox<T>>,
    arrived: Condvar,
}

struct Inbox<T> {
    tensors: FxHashMap<(Rank, Tag), T>,
    bytes: FxHashMap<Rank, VecDeque<Vec<u8>>>,
    /// Ranks that will send nothing more, with the reason if they sent something unreadable.
    gone: FxHashMap<Rank, Option<String>>,
    aborted: Option<Fault>,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Mailbox<T> {
        let inbox = Inbox {
            tensors: FxHashMap::default(),
            bytes: FxHashMap::default(),
            gone: FxHashMap::default(),
            aborted: None,
        };
        Mailbox { inbox: Mutex::new(inbox), arrived: Condvar::new() }
    }
}

impl<T> Mailbox<T> {
    /// Puts a tensor in. Returns false if one with the same sender and tag is still there.
    pub fn put(&self, from: Rank, tag: Tag, tensor: T) -> bool {
        self.change(|inbox| inbox.tensors.insert((from, tag), tensor).is_none())
    }

    /// Appends control data to the queue of its sender.
    pub fn put_bytes(&self, from: Rank, bytes: Vec<u8>) {
        self.change(|inbox| inbox.bytes.entry(from).or_default().push_back(bytes));
    }

    /// Records that a rank will send nothing more: it has ended, or sent `unreadable` data.
    pub fn end(&self, from: Rank, unreadable: Option<String>) {
        self.change(|inbox| {
            inbox.gone.entry(from).or_insert(unreadable);
        });
    }

    /// Ends every wait with a cause. The first cause counts.
    pub fn abort(&self, cause: &Fault) {
        self.change(|inbox| inbox.aborted.get_or_insert_with(|| cause.clone()).clone());
    }

    /// Fails if the run was aborted.
    ///
    /// # Errors
    /// The cause of the abort.
    pub fn check(&self) -> Result<(), CommError> {
        self.lock().check()
    }

    /// Takes a tensor out if it has arrived.
    ///
    /// # Errors
    /// The cause of an abort.
    pub fn try_take(&self, from: Rank, tag: Tag) -> Result<Option<T>, CommError> {
        self.look(|inbox| inbox.tensors.remove(&(from, tag)))
    }

    /// Takes a tensor out, waiting for it until the deadline.
    ///
    /// # Errors
    /// An abort, a sender that has ended, or the deadline.
    pub fn take(&self, from: Rank, tag: Tag, deadline: Instant) -> Result<T, CommError> {
        self.wait(from, &tag, deadline, |inbox| inbox.tensors.remove(&(from, tag)))
    }

    /// Takes the next control data of a rank if any has arrived.
    ///
    /// # Errors
    /// The cause of an abort.
    pub fn try_take_bytes(&self, from: Rank) -> Result<Option<Vec<u8>>, CommError> {
        self.look(|inbox| inbox.next_bytes(from))
    }

    /// Takes the next control data of a rank, waiting for it until the deadline.
    ///
    /// # Errors
    /// An abort, a sender that has ended, or the deadline.
    pub fn take_bytes(&self, from: Rank, deadline: Instant) -> Result<Vec<u8>, CommError> {
        self.wait(from, &"control data", deadline, |inbox| inbox.next_bytes(from))
    }

    /// Ignores poisoning: no change is ever half done, and a panicking rank aborts the run.
    fn lock(&self) -> MutexGuard<'_, Inbox<T>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<R>(&self, change: impl FnOnce(&mut Inbox<T>) -> R) -> R {
        let changed = change(&mut self.lock());
        self.arrived.notify_all();
        changed
    }

    /// Returns what `look` finds now.
    fn look<R>(&self, look: impl Fn(&mut Inbox<T>) -> Option<R>) -> Result<Option<R>, CommError> {
        let mut inbox = self.lock();
        inbox.check().map(|()| look(&mut inbox))
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
        let mut inbox = self.lock();
        loop {
            inbox.check()?;
            if let Some(found) = look(&mut inbox) {
                return Ok(found);
            }
            if let Some(reason) = inbox.gone.get(&from) {
                return Err(match reason.clone() {
                    Some(reason) => CommError::Unreadable { from, reason },
                    None => CommError::Lost { from, what: what.to_string() },
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                let (what, waited) = (what.to_string(), began.elapsed());
                return Err(CommError::Timeout { from, what, waited });
            }
            let waited = self.arrived.wait_timeout(inbox, left);
            inbox = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<T> Inbox<T> {
    fn check(&self) -> Result<(), CommError> {
        self.aborted.clone().map_or(Ok(()), |cause| Err(CommError::Aborted(cause)))
    }

    fn next_bytes(&mut self, from: Rank) -> Option<Vec<u8>> {
        self.bytes.get_mut(&from)?.pop_front()
    }
}
