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

use chimera_core::comm::{Comm, CommError, Host, Tag, What};
use chimera_core::ids::Rank;

/// Announcements, to rank 0.
const ANNOUNCED: u8 = 0;
/// What is next, from rank 0.
const NEXT: u8 = 1;
/// The rank that decides.
pub(crate) const LEAD: Rank = Rank(0);

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
        let none = vec![0; if me == LEAD { n_ranks as usize } else { 0 }];
        let (n_from, n_told) = (none.clone(), none);
        Order { me, n_ranks, n_announced: 0, n_heard: 0, n_from, n_told, next: VecDeque::new() }
    }

    /// Tells that this rank has a message to send.
    pub(crate) fn announce(
        &mut self,
        control: &mut impl Comm<Host>,
        message: Message,
    ) -> Result<(), CommError> {
        if self.me == LEAD {
            return self.decide(control, message);
        }
        let tag = aside(ANNOUNCED, self.n_announced);
        self.n_announced += 1;
        control.send(LEAD, tag, words(&[message.to.0.into(), message.number, message.bytes]))
    }

    /// The next message that this rank is to issue, if it is known.
    pub(crate) fn next(
        &mut self,
        control: &mut impl Comm<Host>,
    ) -> Result<Option<Message>, CommError> {
        if self.me == LEAD {
            self.hear(control)?;
        } else {
            while let Some(told) = control.try_take(LEAD, aside(NEXT, self.n_heard))? {
                self.n_heard += 1;
                let [from, to, number, bytes] = exactly(&told)?;
                self.next.push_back(Message { from: rank(from)?, to: rank(to)?, number, bytes });
            }
        }
        Ok(self.next.pop_front())
    }

    /// On rank 0: orders what was announced.
    fn hear(&mut self, control: &mut impl Comm<Host>) -> Result<(), CommError> {
        for from in (1..self.n_ranks).map(Rank) {
            while let Some(said) =
                control.try_take(from, aside(ANNOUNCED, self.n_from[from.index()]))?
            {
                self.n_from[from.index()] += 1;
                let [to, number, bytes] = exactly(&said)?;
                self.decide(control, Message { from, to: rank(to)?, number, bytes })?;
            }
        }
        Ok(())
    }

    fn decide(&mut self, control: &mut impl Comm<Host>, message: Message) -> Result<(), CommError> {
        let Message { from, to, number, bytes } = message;
        if from.0 >= self.n_ranks || to.0 >= self.n_ranks {
            return Err(unreadable());
        }
        for party in [from, to] {
            if party == self.me {
                self.next.push_back(message);
                continue;
            }
            let n_told = &mut self.n_told[party.index()];
            let tag = aside(NEXT, *n_told);
            *n_told += 1;
            control.send(party, tag, words(&[from.0.into(), to.0.into(), number, bytes]))?;
        }
        Ok(())
    }
}

/// What the transport says to itself.
pub(crate) fn aside(line: u8, number: u64) -> Tag {
    Tag { step: number, what: What::Aside { line } }
}

/// Numbers as a tensor of their bits.
pub(crate) fn words(numbers: &[u64]) -> Host {
    let halves = numbers.iter().flat_map(|n| [*n as u32, (*n >> 32) as u32]);
    let mut data = Vec::with_capacity(2 * numbers.len() + Host::ROOM);
    data.extend(halves.map(f32::from_bits));
    Host { shape: vec![data.len()], data }
}

/// The numbers that [`words`] wrote.
pub(crate) fn numbers(words: &Host) -> Result<Vec<u64>, CommError> {
    let (pairs, rest) = words.data.as_chunks::<2>();
    let whole = |[low, high]: &[f32; 2]| u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32;
    if rest.is_empty() { Ok(pairs.iter().map(whole).collect()) } else { Err(unreadable()) }
}

/// So many of them.
fn exactly<const N: usize>(words: &Host) -> Result<[u64; N], CommError> {
    numbers(words)?.try_into().map_err(|_| unreadable())
}

fn rank(number: u64) -> Result<Rank, CommError> {
    u32::try_from(number).map(Rank).map_err(|_| unreadable())
}

pub(crate) fn unreadable() -> CommError {
    CommError::Failed("a rank said what cannot be read; not all run the same version".into())
}
