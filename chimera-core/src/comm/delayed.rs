//! A transport whose messages take time, for tests of overlap and of order.

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::{Comm, CommError, Position, Tag};
use crate::fault::Fault;
use crate::ids::Rank;

/// Delays every tensor by a time that depends on its tag, so that messages of different channels
/// overtake each other.
pub struct Delayed<T, C, F> {
    inner: C,
    delay: F,
    /// Messages that are here but not due.
    early: FxHashMap<(Rank, Tag), Stamped<T>>,
}

/// A tensor and when it may be seen.
#[derive(Clone, Debug)]
pub struct Stamped<T> {
    tensor: T,
    due: Instant,
}

impl<T, C: Comm<Stamped<T>>, F: Fn(Tag) -> Duration> Delayed<T, C, F> {
    /// Delays the tensors sent through `inner` by `delay`.
    pub fn new(inner: C, delay: F) -> Delayed<T, C, F> {
        Delayed { inner, delay, early: FxHashMap::default() }
    }
}

impl<T, C, F> Comm<T> for Delayed<T, C, F>
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

    fn try_take(&mut self, from: Rank, tag: Tag) -> Result<Option<T>, CommError> {
        let here = match self.early.remove(&(from, tag)) {
            None => self.inner.try_take(from, tag)?,
            early => early,
        };
        match here {
            Some(message) if message.due > Instant::now() => {
                self.early.insert((from, tag), message);
                Ok(None)
            }
            message => Ok(message.map(|m| m.tensor)),
        }
    }

    fn take(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<T, CommError> {
        let began = Instant::now();
        let message = match self.early.remove(&(from, tag)) {
            None => self.inner.take(from, tag, deadline)?,
            Some(early) => early,
        };
        std::thread::sleep(message.due.min(deadline).saturating_duration_since(Instant::now()));
        if message.due > deadline {
            self.early.insert((from, tag), message);
            let what = tag.what.to_string();
            return Err(CommError::Timeout { from, what, waited: began.elapsed() });
        }
        Ok(message.tensor)
    }

    fn has_sum(&self, _: &[Rank]) -> bool {
        false
    }

    fn exchange(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>, CommError> {
        self.inner.exchange(bytes, deadline)
    }

    fn publish(&mut self, position: Position) {
        self.inner.publish(position);
    }

    fn positions(&mut self, deadline: Instant) -> Vec<Option<Position>> {
        self.inner.positions(deadline)
    }

    fn abort(&mut self, cause: &Fault) {
        self.inner.abort(cause);
    }
}
