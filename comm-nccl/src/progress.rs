//! Messages on their way: issued when it is their turn, and awaited.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chimera_backend_candle::gpu::{Driver, Element, Lane, Tensor};
use chimera_core::comm::{Comm, CommError, Endpoint, Host, Tag};
use chimera_core::engine::Patience;
use chimera_core::ids::Rank;

use crate::Nccl;
use crate::communicator::Way;
use crate::control::{Header, Line, unreadable};
use crate::order::{Message, ROOT};

impl<D: Driver, C: Comm<Host>> Nccl<D, C> {
    /// Issues all messages whose turn it is; returns whether there were any.
    pub(crate) fn progress(&mut self) -> Result<bool, CommError> {
        self.watched.check()?;
        let mut moved = false;
        while let Some(message) = self.order.next(&mut self.control)? {
            self.issue(message)?;
            moved = true;
        }
        Ok(moved)
    }

    fn issue(&mut self, message: Message) -> Result<(), CommError> {
        let Message { from, to, number, bytes } = message;
        let watched = Arc::clone(&self.watched);
        let (lane, deadline) = (&watched.lane, Instant::now() + watched.patience());
        let is_over = || watched.check().is_err();
        let began = Instant::now();
        let (peer, what, taken) = if from == self.rank() {
            let unknown =
                || unreadable(ROOT, format!("message {number} to {to}, which is not there"));
            let (tag, tensor) = self.outbox.remove(&(to, number)).ok_or_else(unknown)?;
            let (own, memory) = (tensor.bytes(), tensor.memory());
            let taken = lane.reading(memory, |mut at| {
                at.address = at.address.wrapping_byte_add(own.start);
                watched.communicator.message(Way::To, to.0, at, own.len(), deadline, &is_over)
            })?;
            (to, tag.to_string(), taken?)
        } else {
            let large = |_| unreadable(from, format!("a message of {bytes} bytes"));
            let bytes = usize::try_from(bytes).map_err(large)?;
            let memory = lane.allocate(bytes)?;
            let taken = lane.writing(&memory, |at| {
                watched.communicator.message(Way::From, from.0, at, bytes, deadline, &is_over)
            })?;
            self.inbox.insert((from, number), (memory, bytes));
            (from, format!("message {number}"), taken?)
        };
        if !taken {
            // What ended it elsewhere is the cause.
            self.watched.check()?;
            self.living(peer)?;
            let error = CommError::Timeout { from: peer, what, waited: began.elapsed() };
            self.watched.fail(error.clone());
            return Err(error);
        }
        self.watched.add(peer, what, lane.mark()?);
        Ok(())
    }

    /// What `from` sent under `tag`, if it is on its way into this device's memory.
    pub(crate) fn look(
        &mut self,
        from: Rank,
        tag: Tag,
    ) -> Result<Option<Tensor<D::Memory>>, CommError> {
        if from == self.rank() {
            return Ok(self.own.remove(&tag));
        }
        if !self.headers.contains_key(&(from, tag)) {
            let Some(message) = self.control.try_recv(from, tag)? else { return Ok(None) };
            self.headers.insert((from, tag), Header::read(from, message)?);
        }
        let Header { number, element, ref shape } = self.headers[&(from, tag)];
        let Some(memory) = self.inbox.remove(&(from, number)) else { return Ok(None) };
        let is_whole = bytes_of(element, shape) == Some(memory.1);
        let shape = shape.clone();
        self.headers.remove(&(from, tag));
        if !is_whole {
            return Err(unreadable(from, format!("{} bytes of shape {shape:?}", memory.1)));
        }
        Ok(Some(Tensor::of(memory.0, element, shape)))
    }

    /// Waits until `look` finds something that `from` has to do.
    pub(crate) fn until<R>(
        &mut self,
        deadline: Instant,
        from: Rank,
        what: impl fmt::Display,
        mut look: impl FnMut(&mut Self) -> Result<Option<R>, CommError>,
    ) -> Result<R, CommError> {
        let began = Instant::now();
        for n in 0u32.. {
            let moved = self.progress()?;
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if moved {
                continue;
            }
            if n % 64 == 63 {
                self.living(from)?;
            }
            if Instant::now() >= deadline {
                break;
            }
            if n < 1000 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        Err(CommError::Timeout { from, what: what.to_string(), waited: began.elapsed() })
    }

    /// Lets messages be under way for as long as the engine waits now. What is left until its deadline tells
    /// which patience that is, but is none itself: of a deadline that many share, the last have nothing left.
    pub(crate) fn allow(&self, deadline: Instant) {
        let Patience { first_step, later } = self.patience;
        let left = deadline.saturating_duration_since(Instant::now());
        self.watched.allow(if left > later { first_step } else { later });
    }

    /// Whether the other transport still has a rank, and nobody has given up.
    fn living(&mut self, rank: Rank) -> Result<(), CommError> {
        match self.control.recv(rank, Line::Silence.tag(0), Instant::now()) {
            Err(CommError::Timeout { .. }) | Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn bytes_of(element: Element, shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(element.bytes(), |bytes, extent| bytes.checked_mul(*extent))
}
