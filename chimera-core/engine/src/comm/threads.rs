//! The transport between threads of one process: messages are moved, not copied.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use chimera_schedule::ids::Rank;

use super::mailbox::Mailbox;
use super::{AllReduce, Comm, CommError, Endpoint, Liveness, Position, Tag};
use crate::fault::Fault;

/// Returns the ends of a transport between `n_ranks` threads, by rank.
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

/// One thread's end. Dropping it reports the rank as gone to all ranks that wait for it.
pub struct Threads<T> {
    rank: Rank,
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    mailboxes: Vec<Mailbox<T>>,
    /// The first cause of an abort on any rank.
    abort: Mutex<Option<Fault>>,
    positions: Vec<AtomicU64>,
    is_stopping: AtomicBool,
}

impl<T> Threads<T> {
    fn mailbox(&self, of: Rank) -> Result<&Mailbox<T>, CommError> {
        let all = &self.shared.mailboxes;
        all.get(of.index())
            .ok_or_else(|| CommError::Failed(format!("{of} is not one of the {} ranks", all.len())))
    }
}

impl<T: Send> Liveness for Threads<T> {
    fn report_progress(&mut self, position: Position) {
        if let Some(mine) = self.shared.positions.get(self.rank.index()) {
            mine.store(position.to_bits(), Ordering::Relaxed);
        }
    }

    fn query_progress(&mut self, _: Instant) -> Result<Vec<Option<Position>>, CommError> {
        self.mailbox(self.rank)?.check()?;
        let all = self.shared.positions.iter();
        Ok(all.map(|bits| Some(Position::from_bits(bits.load(Ordering::Relaxed)))).collect())
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
        self.mailbox(to)?.put_bytes(self.rank, bytes);
        Ok(())
    }

    fn try_recv_bytes(&mut self, from: Rank) -> Result<Option<Vec<u8>>, CommError> {
        self.mailbox(self.rank)?.try_take_bytes(from)
    }

    fn recv_bytes(&mut self, from: Rank, deadline: Instant) -> Result<Vec<u8>, CommError> {
        self.mailbox(self.rank)?.take_bytes(from, deadline)
    }

    fn abort(&mut self, cause: &Fault) {
        let mut first = self.shared.abort.lock().unwrap_or_else(PoisonError::into_inner);
        let cause = first.get_or_insert_with(|| cause.clone());
        self.shared.mailboxes.iter().for_each(|mailbox| mailbox.abort(cause));
    }
}

impl<T: Send> Comm<T> for Threads<T> {
    fn send(&mut self, to: Rank, tag: Tag, tensor: T) -> Result<(), CommError> {
        let is_first = self.mailbox(to)?.put(self.rank, tag, tensor);
        assert!(is_first, "{} sent {tag:?} to {to} twice", self.rank);
        Ok(())
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<T>, CommError> {
        self.mailbox(self.rank)?.try_take(from, tag)
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<T, CommError> {
        self.mailbox(self.rank)?.take(from, tag, deadline)
    }

    fn reducer(&mut self, _: &[Rank]) -> Option<&mut dyn AllReduce<T>> {
        None
    }
}

impl<T> Drop for Threads<T> {
    fn drop(&mut self) {
        self.shared.mailboxes.iter().for_each(|mailbox| mailbox.end(self.rank, None));
    }
}
