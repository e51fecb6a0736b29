//! The transport of ranks that are threads of one process: messages are moved, not copied.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::{Comm, CommError, Position, Tag};
use crate::fault::Fault;
use crate::ids::Rank;

/// The ends of a transport between `n_ranks` threads, by rank.
pub fn threads<T: Send>(n_ranks: u32) -> Vec<Threads<T>> {
    let shared = Arc::new(Shared {
        mailboxes: (0..n_ranks).map(|_| Mailbox::default()).collect(),
        abort: Mutex::new(None),
        positions: (0..n_ranks).map(|_| AtomicU64::new(Position::Start.to_bits())).collect(),
    });
    let end = |rank| Threads { rank: Rank(rank), shared: Arc::clone(&shared), n_exchanges: 0 };
    (0..n_ranks).map(end).collect()
}

/// One thread's end. When it is dropped, whoever still waits for it learns that it is gone.
pub struct Threads<T> {
    rank: Rank,
    shared: Arc<Shared<T>>,
    n_exchanges: u64,
}

struct Shared<T> {
    mailboxes: Vec<Mailbox<T>>,
    abort: Mutex<Option<Fault>>,
    positions: Vec<AtomicU64>,
}

struct Mailbox<T> {
    letters: Mutex<Letters<T>>,
    arrived: Condvar,
}

struct Letters<T> {
    tensors: FxHashMap<(Rank, Tag), T>,
    bytes: FxHashMap<(Rank, u64), Vec<u8>>,
    /// Ranks that ended.
    gone: Vec<Rank>,
    is_aborted: bool,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Mailbox<T> {
        let letters = Letters {
            tensors: FxHashMap::default(),
            bytes: FxHashMap::default(),
            gone: Vec::new(),
            is_aborted: false,
        };
        Mailbox { letters: Mutex::new(letters), arrived: Condvar::new() }
    }
}

/// A panicking peer leaves no half-written state behind these locks, and is reported by its abort.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Mailbox<T> {
    fn put(&self, change: impl FnOnce(&mut Letters<T>)) {
        change(&mut lock(&self.letters));
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

    /// Waits until `look` finds something in this rank's mailbox.
    fn wait<R>(
        &self,
        from: Rank,
        what: &dyn Fn() -> String,
        deadline: Instant,
        look: impl Fn(&mut Letters<T>) -> Option<R>,
    ) -> Result<R, CommError> {
        let began = Instant::now();
        let mailbox = self.mailbox(self.rank)?;
        let mut letters = lock(&mailbox.letters);
        loop {
            if letters.is_aborted {
                return Err(self.aborted());
            }
            if let Some(found) = look(&mut letters) {
                return Ok(found);
            }
            if letters.gone.contains(&from) {
                return Err(CommError::Lost { from, what: what() });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return Err(CommError::Timeout { from, what: what(), waited: began.elapsed() });
            }
            let waited = mailbox.arrived.wait_timeout(letters, left);
            letters = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn aborted(&self) -> CommError {
        match lock(&self.shared.abort).clone() {
            Some(cause) => CommError::Aborted(cause),
            None => CommError::Failed("aborted without a cause".into()),
        }
    }
}

impl<T: Send> Comm<T> for Threads<T> {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn n_ranks(&self) -> u32 {
        self.shared.mailboxes.len() as u32
    }

    fn send(&mut self, to: Rank, tag: Tag, tensor: T) -> Result<(), CommError> {
        let from = self.rank;
        self.mailbox(to)?.put(|letters| {
            let earlier = letters.tensors.insert((from, tag), tensor);
            assert!(earlier.is_none(), "{from} sent {tag:?} to {to} twice");
        });
        Ok(())
    }

    fn post(&mut self, _: Rank, _: Tag) -> Result<(), CommError> {
        Ok(()) // every message already goes straight to its receiver's mailbox
    }

    fn try_take(&mut self, from: Rank, tag: Tag) -> Result<Option<T>, CommError> {
        let mut letters = lock(&self.mailbox(self.rank)?.letters);
        if letters.is_aborted {
            Err(self.aborted())
        } else {
            Ok(letters.tensors.remove(&(from, tag)))
        }
    }

    fn take(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<T, CommError> {
        self.wait(from, &|| tag.what.to_string(), deadline, |letters| {
            letters.tensors.remove(&(from, tag))
        })
    }

    fn has_sum(&self, _: &[Rank]) -> bool {
        false
    }

    fn exchange(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>, CommError> {
        let (from, number) = (self.rank, self.n_exchanges);
        self.n_exchanges += 1;
        for mailbox in &self.shared.mailboxes {
            mailbox.put(|letters| {
                letters.bytes.insert((from, number), bytes.to_vec());
            });
        }
        let what = || "its part of the agreement".to_string();
        (0..self.n_ranks())
            .map(Rank)
            .map(|r| self.wait(r, &what, deadline, |letters| letters.bytes.remove(&(r, number))))
            .collect()
    }

    fn publish(&mut self, position: Position) {
        if let Some(mine) = self.shared.positions.get(self.rank.index()) {
            mine.store(position.to_bits(), Ordering::Relaxed);
        }
    }

    fn positions(&mut self, _: Instant) -> Vec<Option<Position>> {
        let all = self.shared.positions.iter();
        all.map(|bits| Some(Position::from_bits(bits.load(Ordering::Relaxed)))).collect()
    }

    fn abort(&mut self, cause: &Fault) {
        lock(&self.shared.abort).get_or_insert_with(|| cause.clone());
        for mailbox in &self.shared.mailboxes {
            mailbox.put(|letters| letters.is_aborted = true);
        }
    }
}

impl<T> Drop for Threads<T> {
    fn drop(&mut self) {
        for mailbox in &self.shared.mailboxes {
            mailbox.put(|letters| letters.gone.push(self.rank));
        }
    }
}
