//! A thread that ends NCCL's work if it cannot end by itself: a kernel of NCCL waits for its peer
//! for ever, and the engine waits for the kernel.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use chimera_backend_cuda::Lane;
use chimera_core::comm::CommError;
use chimera_core::ids::Rank;

use crate::communicator::Communicator;

/// Time between two checks.
const PERIOD: Duration = Duration::from_millis(20);

/// State that the engine's thread and the watching thread share.
pub(crate) struct Watchdog<L: Lane> {
    pub(crate) communicator: Communicator,
    pub(crate) lane: L,
    under_way: Mutex<VecDeque<UnderWay<L::Mark>>>,
    /// The longest that a message may be under way, in milliseconds.
    patience: AtomicU64,
    failure: Mutex<Option<CommError>>,
    is_closed: AtomicBool,
}

/// A message that NCCL has taken.
struct UnderWay<M> {
    peer: Rank,
    what: String,
    since: Instant,
    done: M,
}

impl<L: Lane> Watchdog<L> {
    pub(crate) fn new(communicator: Communicator, lane: L, patience: Duration) -> Watchdog<L> {
        let watched = Watchdog {
            communicator,
            lane,
            under_way: Mutex::default(),
            patience: AtomicU64::new(0),
            failure: Mutex::default(),
            is_closed: AtomicBool::new(false),
        };
        watched.allow(patience);
        watched
    }

    /// Sets the longest that messages may be under way.
    pub(crate) fn allow(&self, patience: Duration) {
        self.patience.store(patience.as_millis() as u64, Ordering::Relaxed);
    }

    pub(crate) fn patience(&self) -> Duration {
        Duration::from_millis(self.patience.load(Ordering::Relaxed))
    }

    /// Adds a message that is under way until the mark `done`.
    pub(crate) fn add(&self, peer: Rank, what: String, done: L::Mark) {
        lock(&self.under_way).push_back(UnderWay { peer, what, since: Instant::now(), done });
    }

    pub(crate) fn is_idle(&self) -> bool {
        lock(&self.under_way).is_empty()
    }

    /// Returns the failure, if NCCL's work has ended.
    pub(crate) fn check(&self) -> Result<(), CommError> {
        lock(&self.failure).clone().map_or(Ok(()), Err)
    }

    /// Ends NCCL's work with this error, unless there was one before.
    pub(crate) fn fail(&self, error: CommError) {
        lock(&self.failure).get_or_insert(error);
        self.communicator.abort();
    }

    /// Starts a thread that watches until [`close`](Self::close). If `why_over` returns an error,
    /// the run has ended elsewhere, which ends NCCL's work.
    pub(crate) fn watch(
        self: &Arc<Self>,
        why_over: impl Fn() -> Option<CommError> + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        let watched = Arc::clone(self);
        Builder::new().name("nccl".into()).spawn(move || {
            while !watched.is_closed.load(Ordering::Acquire) {
                if let Err(error) = why_over().map_or_else(|| watched.look(), Err) {
                    return watched.fail(error);
                }
                std::thread::park_timeout(PERIOD);
            }
        })
    }

    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    fn look(&self) -> Result<(), CommError> {
        self.communicator.look()?;
        let mut under_way = lock(&self.under_way);
        while let Some(first) = under_way.front() {
            if !self.lane.is_done(&first.done)? {
                let (from, what, waited) = (first.peer, first.what.clone(), first.since.elapsed());
                return if waited > self.patience() {
                    Err(CommError::Timeout { from, what, waited })
                } else {
                    Ok(())
                };
            }
            under_way.pop_front();
            // Time counts from here: receives are begun long before their turn.
            if let Some(next) = under_way.front_mut() {
                next.since = Instant::now();
            }
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
