//! A transport whose messages take time, for tests of overlap and of order.

use std::time::{Duration, Instant};

use super::{Comm, CommError, Tag};
use crate::fault::Fault;
use crate::ids::Rank;

/// Delays every tensor by a time that depends on its tag, so that messages of different channels
/// overtake each other.
pub struct Delayed<C, F> {
    inner: C,
    delay: F,
}

/// A tensor and when it may be seen.
#[derive(Clone, Debug)]
pub struct Stamped<T> {
    tensor: T,
    due: Instant,
}

impl<C, F: Fn(Tag) -> Duration> Delayed<C, F> {
    /// Delays the tensors sent through `inner` by `delay`.
    pub fn new(inner: C, delay: F) -> Delayed<C, F> {
        Delayed { inner, delay }
    }
}

impl<T, C, F> Comm<T> for Delayed<C, F>
where
    T: Send,
    C: Comm<Stamped<T>>,
    F: Fn(Tag) -> Duration + Send,
{
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn n_ranks(&self) -> u32 {
        self.inner.n_ranks()
    }

    fn send(&mut self, to: Rank, tag: Tag, tensor: T) -> Result<(), CommError> {
        let due = Instant::now() + (self.delay)(tag);
        self.inner.send(to, tag, Stamped { tensor, due })
    }

    fn post(&mut self, from: Rank, tag: Tag) -> Result<(), CommError> {
        self.inner.post(from, tag)
    }

    /// Waits out what is left of the delay once the message is there: `None` would be as true, but
    /// needs a place to keep the message.
    fn try_take(&mut self, from: Rank, tag: Tag) -> Result<Option<T>, CommError> {
        Ok(self.inner.try_take(from, tag)?.map(wait_out))
    }

    fn take(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<T, CommError> {
        self.inner.take(from, tag, deadline).map(wait_out)
    }

    fn exchange(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>, CommError> {
        self.inner.exchange(bytes, deadline)
    }

    fn abort(&mut self, cause: &Fault) {
        self.inner.abort(cause);
    }
}

fn wait_out<T>(stamped: Stamped<T>) -> T {
    std::thread::sleep(stamped.due.saturating_duration_since(Instant::now()));
    stamped.tensor
}
