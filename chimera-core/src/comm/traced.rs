//! A transport that keeps a record of its messages.

use std::time::Instant;

use super::{Comm, CommError, Position, Tag};
use crate::fault::Fault;
use crate::ids::Rank;

/// Records every tensor that one rank sends or takes.
pub struct Traced<C> {
    inner: C,
    messages: Vec<Message>,
}

/// One tensor sent or taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Sent or taken.
    pub direction: Direction,
    /// The other rank.
    pub peer: Rank,
    /// What it was.
    pub tag: Tag,
    /// When it was sent, or when it was waited for.
    pub start: Instant,
    /// When the call was done.
    pub end: Instant,
}

/// Which way a message went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From this rank.
    Sent,
    /// To this rank.
    Taken,
}

impl<C> Traced<C> {
    /// Records what goes through `inner`.
    pub fn new(inner: C) -> Traced<C> {
        Traced { inner, messages: Vec::new() }
    }

    /// The record so far; it begins anew.
    pub fn take_messages(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.messages)
    }

    fn record(&mut self, direction: Direction, peer: Rank, tag: Tag, start: Instant) {
        self.messages.push(Message { direction, peer, tag, start, end: Instant::now() });
    }
}

impl<T, C: Comm<T>> Comm<T> for Traced<C> {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn n_ranks(&self) -> u32 {
        self.inner.n_ranks()
    }

    fn send(&mut self, to: Rank, tag: Tag, tensor: T) -> Result<(), CommError> {
        let start = Instant::now();
        self.inner.send(to, tag, tensor)?;
        self.record(Direction::Sent, to, tag, start);
        Ok(())
    }

    fn post(&mut self, from: Rank, tag: Tag) -> Result<(), CommError> {
        self.inner.post(from, tag)
    }

    fn try_take(&mut self, from: Rank, tag: Tag) -> Result<Option<T>, CommError> {
        let start = Instant::now();
        let taken = self.inner.try_take(from, tag)?;
        if taken.is_some() {
            self.record(Direction::Taken, from, tag, start);
        }
        Ok(taken)
    }

    fn take(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<T, CommError> {
        let start = Instant::now();
        let tensor = self.inner.take(from, tag, deadline)?;
        self.record(Direction::Taken, from, tag, start);
        Ok(tensor)
    }

    fn has_sum(&self, members: &[Rank]) -> bool {
        self.inner.has_sum(members)
    }

    fn sum(&mut self, members: &[Rank], tag: Tag, tensor: T) -> Result<(), CommError> {
        let start = Instant::now();
        self.inner.sum(members, tag, tensor)?;
        self.record(Direction::Sent, self.inner.rank(), tag, start);
        Ok(())
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
