//! A transport with delayed messages, for tests of overlap and order.

use std::time::{Duration, Instant};

use chimera_schedule::ids::Rank;
use rustc_hash::FxHashMap;

use super::{AllReduce, Comm, CommError, Endpoint, Tag, Wrap};

/// Delays every tensor by a time that depends on its tag, so that messages of different channels
/// overtake each other.
pub struct Delayed<T, C, F> {
    inner: C,
    delay: F,
    /// Messages that have arrived but are not due.
    early: FxHashMap<(Rank, Tag), Stamped<T>>,
}

/// A tensor and the time from which it may be received.
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

impl<T, C, F> Wrap for Delayed<T, C, F>
where
    T: Send,
    C: Endpoint,
    F: Send,
{
    type Inner = C;

    fn inner(&self) -> &C {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut C {
        &mut self.inner
    }
}

impl<T, C, F> Comm<T> for Delayed<T, C, F>
where
    T: Send,
    C: Comm<Stamped<T>>,
    F: Fn(Tag) -> Duration + Send,
{
    fn send(&mut self, to: Rank, tag: Tag, tensor: T) -> Result<(), CommError> {
        let due = Instant::now() + (self.delay)(tag);
        self.inner.send(to, tag, Stamped { tensor, due })
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<T>, CommError> {
        let here = match self.early.remove(&(from, tag)) {
            None => self.inner.try_recv(from, tag)?,
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

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<T, CommError> {
        let began = Instant::now();
        let message = match self.early.remove(&(from, tag)) {
            None => self.inner.recv(from, tag, deadline)?,
            Some(early) => early,
        };
        std::thread::sleep(message.due.min(deadline).saturating_duration_since(Instant::now()));
        if message.due > deadline {
            self.early.insert((from, tag), message);
            let waited = began.elapsed();
            return Err(CommError::Timeout { from, what: tag.to_string(), waited });
        }
        Ok(message.tensor)
    }

    fn reducer(&mut self, _: &[Rank]) -> Option<&mut dyn AllReduce<T>> {
        None
    }
}
