//! The order of messages, which all ranks keep.
//!
//! NCCL wants the operations of a device issued in an order that all devices agree on: each runs to its end
//! before the next begins, and a send ends only when its receive has begun. A fixed order would have to be one
//! for each schedule, sum and evaluation. Here rank 0 decides while the run goes on: a sender announces its
//! message to rank 0, which tells both parties that it is next, always one message after another. So every rank
//! issues its messages in a part of one total order. A message is announced when the work that makes it has
//! been given to the device, and that needs only messages issued before; so the first message of the order that
//! is not done can always proceed, and no schedule can stand still.

use std::collections::VecDeque;

use chimera_core::comm::{Comm, CommError, Host};
use chimera_core::ids::Rank;

use crate::control::{Line, exactly, of_numbers, rank, unreadable};

/// The rank that decides.
pub(crate) const ROOT: Rank = Rank(0);

/// A message between two ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    /// Its number among those of the two.
    pub(crate) number: u64,
    pub(crate) bytes: u64,
}

/// A rank's view of the order.
pub(crate) struct Order {
    me: Rank,
    n_ranks: u32,
    n_announced: u64,
    n_heard: u64,
    /// On rank 0: announcements of each rank so far, and what each was told.
    n_from: Vec<u64>,
    n_told: Vec<u64>,
    /// What this rank is to issue, in order.
    next: VecDeque<Message>,
}

impl Order {
    pub(crate) fn new(me: Rank, n_ranks: u32) -> Order {
        let none = vec![0; if me == ROOT { n_ranks as usize } else { 0 }];
        let (n_from, n_told) = (none.clone(), none);
        Order { me, n_ranks, n_announced: 0, n_heard: 0, n_from, n_told, next: VecDeque::new() }
    }

    /// Tells that this rank has a message to send.
    pub(crate) fn announce(
        &mut self,
        control: &mut impl Comm<Host>,
        message: Message,
    ) -> Result<(), CommError> {
        if self.me == ROOT {
            return self.decide(control, message);
        }
        let tag = Line::Announced.tag(self.n_announced);
        self.n_announced += 1;
        control.send(ROOT, tag, of_numbers(&[message.to.0.into(), message.number, message.bytes]))
    }

    /// The next message that this rank is to issue, if it is known.
    pub(crate) fn next(
        &mut self,
        control: &mut impl Comm<Host>,
    ) -> Result<Option<Message>, CommError> {
        if self.me == ROOT {
            self.hear(control)?;
        } else {
            while let Some(told) = control.try_recv(ROOT, Line::Next.tag(self.n_heard))? {
                self.n_heard += 1;
                let [from, to, number, bytes] = exactly(ROOT, told)?;
                let (from, to) = (rank(ROOT, from)?, rank(ROOT, to)?);
                self.next.push_back(Message { from, to, number, bytes });
            }
        }
        Ok(self.next.pop_front())
    }

    /// On rank 0: orders what was announced.
    fn hear(&mut self, control: &mut impl Comm<Host>) -> Result<(), CommError> {
        for from in (1..self.n_ranks).map(Rank) {
            while let Some(message) =
                control.try_recv(from, Line::Announced.tag(self.n_from[from.index()]))?
            {
                self.n_from[from.index()] += 1;
                let [to, number, bytes] = exactly(from, message)?;
                self.decide(control, Message { from, to: rank(from, to)?, number, bytes })?;
            }
        }
        Ok(())
    }

    fn decide(&mut self, control: &mut impl Comm<Host>, message: Message) -> Result<(), CommError> {
        let Message { from, to, number, bytes } = message;
        if to.0 >= self.n_ranks {
            return Err(unreadable(from, format!("{to} is not one of the {} ranks", self.n_ranks)));
        }
        for party in [from, to] {
            if party == self.me {
                self.next.push_back(message);
                continue;
            }
            let n_told = &mut self.n_told[party.index()];
            let tag = Line::Next.tag(*n_told);
            *n_told += 1;
            control.send(party, tag, of_numbers(&[from.0.into(), to.0.into(), number, bytes]))?;
        }
        Ok(())
    }
}
