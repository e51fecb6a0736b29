//! The transport of ranks that are threads of one process: messages are moved, not copied.

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::{Comm, CommError, Endpoint, Liveness, Position, Tag};
use crate::fault::Fault;
use crate::ids::Rank;

/// The ends of a transport between `n_ranks` threads, by rank.
pub fn threads<T: Send>(n_ranks: u32) -> Vec<Threads<T>> {
    let shared = Arc::new(Shared {
        mailboxes: (0..n_ranks).map(|_| Mailbox::default()).collect(),
        abort: Mutex::new(None),
        positions: (0..n_ranks).map(|_| AtomicU64::new(Position::Start.to_bits())).collect(),
        is_stopping: AtomicBool::new(false),
    });
    let end = |rank| Threads { rank: Rank(rank), shared: Arc::clone(&shared) };
    (0..n_ranks).map(end).collect()
}

/// One thread's end. When it is dropped, whoever still waits for it learns that it is gone.
pub struct Threads<T> {
    rank: Rank,
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    mailboxes: Vec<Mailbox<T>>,
    abort: Mutex<Option<Fault>>,
    positions: Vec<AtomicU64>,
    is_stopping: AtomicBool,
}

struct Mailbox<T> {
    inbox: Mutex<Inbox<T>>,
    arrived: Condvar,
}

/// What has come for a rank and was not received yet.
struct Inbox<T> {
    tensors: FxHashMap<(Rank, Tag), T>,
    bytes: FxHashMap<Rank, VecDeque<Vec<u8>>>,
    /// Ranks that ended.
    gone: Vec<Rank>,
    is_aborted: bool,
}

impl<T> Inbox<T> {
    fn next_bytes(&mut self, from: Rank) -> Option<Vec<u8>> {
        self.bytes.get_mut(&from)?.pop_front()
    }
}

impl<T> Default for Mailbox<T> {
    fn default() -> Mailbox<T> {
        let inbox = Inbox {
            tensors: FxHashMap::default(),
            bytes: FxHashMap::default(),
            gone: Vec::new(),
            is_aborted: false,
        };
        Mailbox { inbox: Mutex::new(inbox), arrived: Condvar::new() }
    }
}

/// A panicking peer leaves no half-written state behind these locks, and is reported by its abort.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Mailbox<T> {
    fn put(&self, change: impl FnOnce(&mut Inbox<T>)) {
        change(&mut lock(&self.inbox));
        self.arrived.notify_all();
    }
}

impl<T> Threads<T> {
    fn mailbox(&self, of: Rank) -> Result<&Mailbox<T>, CommError> {
        let n = self.shared.mailboxes.len();
        self.shared
            .mailboxes
            .get(of.index())
            .ok_or_else(|| CommError::Failed(format!("{of} is not one of the {n} ranks")))
    }

    /// What `look` finds in this rank's mailbox now.
    fn look<R>(&self, look: impl Fn(&mut Inbox<T>) -> Option<R>) -> Result<Option<R>, CommError> {
        let mut inbox = lock(&self.mailbox(self.rank)?.inbox);
        if inbox.is_aborted { Err(self.aborted()) } else { Ok(look(&mut inbox)) }
    }

    /// Waits until `look` finds something in this rank's mailbox.
    fn wait<R>(
        &self,
        from: Rank,
        what: &dyn Display,
        deadline: Instant,
        look: impl Fn(&mut Inbox<T>) -> Option<R>,
    ) -> Result<R, CommError> {
        let began = Instant::now();
        let mailbox = self.mailbox(self.rank)?;
        let mut inbox = lock(&mailbox.inbox);
        loop {
            if inbox.is_aborted {
                return Err(self.aborted());
            }
            if let Some(found) = look(&mut inbox) {
                return Ok(found);
            }
            if inbox.gone.contains(&from) {
                return Err(CommError::Lost { from, what: what.to_string() });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return Err(CommError::Timeout {
                    from,
                    what: what.to_string(),
                    waited: began.elapsed(),
                });
            }
            let waited = mailbox.arrived.wait_timeout(inbox, left);
            inbox = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn aborted(&self) -> CommError {
        match lock(&self.shared.abort).clone() {
            Some(cause) => CommError::Aborted(cause),
            None => CommError::Failed("aborted without a cause".into()),
        }
    }
}

impl<T: Send> Liveness for Threads<T> {
    fn report_progress(&mut self, position: Position) {
        if let Some(mine) = self.shared.positions.get(self.rank.index()) {
            mine.store(position.to_bits(), Ordering::Relaxed);
        }
    }

    fn query_progress(&mut self, _: Instant) -> Vec<Option<Position>> {
        let all = self.shared.positions.iter();
        all.map(|bits| Some(Position::from_bits(bits.load(Ordering::Relaxed)))).collect()
    }

    fn request_stop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
    }

    fn stop_requested(&self) -> Option<bool> {
        Some(self.shared.is_stopping.load(Ordering::Relaxed))
    }
}

impl<T: Send> Endpoint for Threads<T> {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn n_ranks(&self) -> u32 {
        self.shared.mailboxes.len() as u32
    }

    fn send_bytes(&mut self, to: Rank, bytes: Vec<u8>) -> Result<(), CommError> {
        let from = self.rank;
        self.mailbox(to)?.put(|inbox| inbox.bytes.entry(from).or_default().push_back(bytes));
        Ok(())
    }

    fn try_recv_bytes(&mut self, from: Rank) -> Result<Option<Vec<u8>>, CommError> {
        self.look(|inbox| inbox.next_bytes(from))
    }

    fn recv_bytes(&mut self, from: Rank, deadline: Instant) -> Result<Vec<u8>, CommError> {
        self.wait(from, &"control data", deadline, |inbox| inbox.next_bytes(from))
    }

    fn abort(&mut self, cause: &Fault) {
        lock(&self.shared.abort).get_or_insert_with(|| cause.clone());
        for mailbox in &self.shared.mailboxes {
            mailbox.put(|inbox| inbox.is_aborted = true);
        }
    }
}

impl<T: Send> Comm<T> for Threads<T> {
    fn send(&mut self, to: Rank, tag: Tag, tensor: T) -> Result<(), CommError> {
        let from = self.rank;
        self.mailbox(to)?.put(|inbox| {
            let earlier = inbox.tensors.insert((from, tag), tensor);
            assert!(earlier.is_none(), "{from} sent {tag:?} to {to} twice");
        });
        Ok(())
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<T>, CommError> {
        self.look(|inbox| inbox.tensors.remove(&(from, tag)))
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<T, CommError> {
        self.wait(from, &tag, deadline, |inbox| inbox.tensors.remove(&(from, tag)))
    }

    fn has_all_reduce(&self, _: &[Rank]) -> bool {
        false
    }
}

impl<T> Drop for Threads<T> {
    fn drop(&mut self) {
        for mailbox in &self.shared.mailboxes {
            mailbox.put(|inbox| inbox.gone.push(self.rank));
        }
    }
}
