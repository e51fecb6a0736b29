//! A transport whose activations and gradients arrive when their costs say.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::pace::Pace;
use crate::comm::{Comm, CommError, Endpoint, Payload, Tag, Wrap};
use crate::effects::Token;
use crate::ids::Rank;

/// A tensor with the time at which it arrives.
pub(super) struct Dated<T> {
    tensor: T,
    due: Instant,
}

/// Delays the values of tokens by `delay`, counted from the end of the op that made them.
pub(super) struct Paced<T, C, F> {
    pub(super) inner: C,
    pub(super) pace: Arc<Pace>,
    pub(super) delay: F,
    /// Messages that are here but not due.
    pub(super) early: FxHashMap<(Rank, Tag), Dated<T>>,
}

impl<T: Send, C: Endpoint, F: Send> Wrap for Paced<T, C, F> {
    type Inner = C;

    fn inner(&self) -> &C {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut C {
        &mut self.inner
    }
}

impl<T, C, F> Comm<T> for Paced<T, C, F>
where
    T: Send,
    C: Comm<Dated<T>>,
    F: Fn(&Token) -> Duration + Send,
{
    fn send(&mut self, to: Rank, tag: Tag, tensor: T) -> Result<(), CommError> {
        let due = match tag.payload() {
            Payload::Token(token) => self.pace.now() + (self.delay)(&token),
            _ => Instant::now(),
        };
        self.inner.send(to, tag, Dated { tensor, due })
    }

    /// Only what belongs to reductions is asked for so, and is not delayed.
    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<T>, CommError> {
        Ok(self.inner.try_recv(from, tag)?.map(|dated| dated.tensor))
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<T, CommError> {
        let Payload::Token(_) = tag.payload() else {
            return Ok(self.inner.recv(from, tag, deadline)?.tensor);
        };
        let began = Instant::now();
        self.pace.wait_for(tag);
        let message = match self.early.remove(&(from, tag)) {
            None => self.inner.recv(from, tag, deadline)?,
            Some(early) => early,
        };
        if message.due > deadline {
            self.early.insert((from, tag), message);
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
            let waited = began.elapsed();
            return Err(CommError::Timeout { from, what: tag.to_string(), waited });
        }
        self.pace.receive(message.due);
        Ok(message.tensor)
    }

    fn has_all_reduce(&self, _: &[Rank]) -> bool {
        false
    }
}
