//! Gradient reduction: sums over replicas, in a fixed order over any transport.
//!
//! The gradients of a bucket, or of a part of it, are in one buffer, and its segments travel
//! between replicas as planned by [`collective`]. Every member gets the same bits, and the bits do
//! not depend on the transport. If the transport is to reduce by itself ([`Comm::reducer`]), only
//! the first holds. Nothing here waits except [`wait`](Reduction::wait), so a reduction proceeds
//! while its members compute.
//!
//! [`collective`]: chimera_schedule::collective

use std::sync::Arc;
use std::time::{Duration, Instant};

use chimera_schedule::analyze::Need;
use chimera_schedule::collective::{Part, Round};
use chimera_schedule::ids::{BucketId, Rank};

use crate::comm::{Comm, CommError, Payload, Tag};
use crate::device::{Device, DeviceError};
use crate::engine::reduce::bf16;
use crate::engine::reduce::layout::{BucketLayout, Piece, cut};

/// The reason that a reduction failed.
#[derive(Debug)]
pub(crate) enum ReduceError {
    /// An error of the transport, and the message that was needed from the other rank.
    Comm(CommError, Need),
    Device(DeviceError),
    /// The received part has another shape than this rank's own.
    Shape {
        from: Rank,
        what: Payload,
        expected: Vec<usize>,
        got: Vec<usize>,
    },
}

impl ReduceError {
    /// Length of a wait that timed out.
    pub(crate) fn waited_mut(&mut self) -> Option<&mut Duration> {
        match self {
            ReduceError::Comm(error, _) => error.waited_mut(),
            ReduceError::Device(_) | ReduceError::Shape { .. } => None,
        }
    }
}

impl From<DeviceError> for ReduceError {
    fn from(error: DeviceError) -> ReduceError {
        ReduceError::Device(error)
    }
}

/// A reduction in progress, as one member sees it.
pub(crate) struct Reduction<T> {
    bucket: BucketId,
    part: u32,
    step: u64,
    members: Vec<Rank>,
    /// Index of this rank among the members.
    me: usize,
    layout: Arc<BucketLayout>,
    /// Whether parts and sums are rounded to bf16 and sent in bf16.
    is_bf16: bool,
    rounds: Vec<Round>,
    /// The current round, and the number of its messages received so far.
    at: usize,
    n_received: usize,
    /// The pieces of the buffer that this rank has and still needs, in order.
    held: Vec<Piece<T>>,
    /// In a round that adds: the sum so far.
    sum: Option<T>,
}

impl<T: Clone + Send> Reduction<T> {
    /// Starts the reduction of `parts`, this rank's gradients, which are arranged in the buffer by
    /// `layout`. With `is_bf16` they are sent between ranks in bf16.
    pub(crate) fn start<D, C>(
        device: &D,
        comm: &mut C,
        step: u64,
        (bucket, part): (BucketId, u32),
        members: Vec<Rank>,
        (layout, is_bf16): (Arc<BucketLayout>, bool),
        parts: Vec<T>,
    ) -> Result<Reduction<T>, CommError>
    where
        D: Device<Tensor = T>,
        C: Comm<T>,
    {
        let (rank, n) = (comm.rank(), members.len());
        let me = members.iter().position(|member| *member == rank);
        let me = me.unwrap_or_else(|| panic!("{rank} reduces {bucket} and is not a member"));
        let mut held = layout.pieces(device, parts)?;
        let mut rounds = layout.plan().rounds(me, layout.keeps_sums());
        let has_own_sum = !layout.keeps_sums() && !is_bf16 && layout.n_elements() > 0;
        if has_own_sum && let Some(comm) = comm.reducer(&members) {
            let buffer = cut(device, &held, &(0..layout.n_elements()))?;
            comm.all_reduce(&members, Tag::new(step, Payload::Sums { bucket, part }), buffer)?;
            let from_itself = Part { peer: me, segments: 0..n };
            rounds = vec![Round { recvs: vec![from_itself], ..Round::default() }];
            held.clear();
        }
        let mut reduction = Reduction {
            bucket,
            part,
            step,
            members,
            me,
            layout,
            is_bf16,
            rounds,
            at: 0,
            n_received: 0,
            held,
            sum: None,
        };
        reduction.begin_round(device, comm)?;
        Ok(reduction)
    }

    /// Proceeds as far as possible without waiting.
    pub(crate) fn poll<D, C>(&mut self, device: &D, comm: &mut C) -> Result<(), ReduceError>
    where
        D: Device<Tensor = T>,
        C: Comm<T>,
    {
        self.advance(device, comm, None)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.at == self.rounds.len()
    }

    /// Waits for all sums until `deadline`. It may be called again.
    pub(crate) fn wait<D, C>(
        &mut self,
        device: &D,
        comm: &mut C,
        deadline: Instant,
    ) -> Result<(), ReduceError>
    where
        D: Device<Tensor = T>,
        C: Comm<T>,
    {
        self.advance(device, comm, Some(deadline))
    }

    /// Returns the sums of a reduction that is done; `None` for sums that other ranks keep. The
    /// sums may share memory with the other members' copies.
    pub(crate) fn finish<D>(self, device: &D) -> Result<Vec<Option<T>>, ReduceError>
    where
        D: Device<Tensor = T>,
    {
        let own = self.layout.plan().segments().iter().position(|member| *member == self.me);
        let own = own.map_or(0..0, |position| self.layout.elements(&(position..position + 1)));
        let sums = self.layout.tensors().map(|(place, shape)| {
            let is_kept = own.start <= place.start && place.end <= own.end;
            if self.layout.keeps_sums() && !is_kept {
                Ok(None)
            } else {
                device.reshape(&cut(device, &self.held, place)?, shape).map(Some)
            }
        });
        Ok(sums.collect::<Result<_, DeviceError>>()?)
    }

    /// Receives the messages of the current round and begins the next, until a message is missing.
    /// With a deadline, waits for all messages.
    fn advance<D, C>(
        &mut self,
        device: &D,
        comm: &mut C,
        deadline: Option<Instant>,
    ) -> Result<(), ReduceError>
    where
        D: Device<Tensor = T>,
        C: Comm<T>,
    {
        while let Some(round) = self.rounds.get(self.at) {
            let Some(Part { peer, segments }) = round.recvs.get(self.n_received).cloned() else {
                self.end_round(device)?;
                let begun = self.begin_round(device, comm);
                begun.map_err(|e| ReduceError::Comm(e, Need::Other))?;
                continue;
            };
            let (adds, elements) = (round.adds_up.is_some(), self.layout.elements(&segments));
            if !elements.is_empty() {
                let part = if adds && peer == self.me {
                    self.held.pop().map(|own| own.tensor)
                } else {
                    self.recv(device, comm, peer, elements.len(), deadline)?
                };
                let Some(tensor) = part else { return Ok(()) };
                if adds {
                    self.add(device, &tensor)?
                } else {
                    self.hold(Piece { elements, tensor })
                }
            }
            self.n_received += 1;
        }
        Ok(())
    }

    /// Sends the messages of the round that begins. In a round that adds, this rank keeps only the
    /// segments to which it adds.
    fn begin_round<D, C>(&mut self, device: &D, comm: &mut C) -> Result<(), CommError>
    where
        D: Device<Tensor = T>,
        C: Comm<T>,
    {
        let Some(round) = self.rounds.get(self.at) else { return Ok(()) };
        for Part { peer, segments } in &round.sends {
            let elements = self.layout.elements(segments);
            if !elements.is_empty() {
                let part = cut(device, &self.held, &elements)?;
                let part = if self.is_bf16 { bf16::pack(device, &part)? } else { part };
                comm.send(self.members[*peer], self.tag(round), part)?;
            }
        }
        if let Some(kept) = &round.adds_up {
            let elements = self.layout.elements(kept);
            let tensor = self.rounded(device, cut(device, &self.held, &elements)?)?;
            self.held = vec![Piece { elements, tensor }];
        }
        Ok(())
    }

    /// Keeps the sum of a round that adds, and leaves the round.
    fn end_round<D: Device<Tensor = T>>(&mut self, device: &D) -> Result<(), DeviceError> {
        let kept = self.rounds[self.at].adds_up.as_ref();
        if let (Some(kept), Some(sum)) = (kept, self.sum.take()) {
            let tensor = self.rounded(device, sum)?;
            self.held = vec![Piece { elements: self.layout.elements(kept), tensor }];
        }
        (self.at, self.n_received) = (self.at + 1, 0);
        Ok(())
    }

    /// Rounds a tensor as it would be if it were sent.
    fn rounded<D: Device<Tensor = T>>(&self, device: &D, tensor: T) -> Result<T, DeviceError> {
        if self.is_bf16 { bf16::round(device, &tensor) } else { Ok(tensor) }
    }

    /// Adds another part to the sum of the round.
    fn add<D: Device<Tensor = T>>(&mut self, device: &D, part: &T) -> Result<(), DeviceError> {
        match &mut self.sum {
            Some(sum) => device.accumulate(sum, part)?,
            // Other ranks may still read the memory of the part.
            None => self.sum = Some(device.join(&[part])?),
        }
        Ok(())
    }

    /// Inserts a received sum into the held pieces.
    fn hold(&mut self, piece: Piece<T>) {
        let at = self.held.partition_point(|held| held.elements.start < piece.elements.start);
        self.held.insert(at, piece);
    }

    /// Receives a member's message of the round, if it has arrived; waits until a `deadline`.
    fn recv<D, C>(
        &self,
        device: &D,
        comm: &mut C,
        member: usize,
        n_elements: usize,
        deadline: Option<Instant>,
    ) -> Result<Option<T>, ReduceError>
    where
        D: Device<Tensor = T>,
        C: Comm<T>,
    {
        let round = &self.rounds[self.at];
        let (from, tag) = (self.members[member], self.tag(round));
        // In the first round all send what they have; later rounds wait for what others send.
        let need = if self.at == 0 && round.adds_up.is_some() {
            Need::Part(self.bucket)
        } else {
            Need::Sum(self.bucket)
        };
        let received = match deadline {
            Some(deadline) => comm.recv(from, tag, deadline).map(Some),
            None => comm.try_recv(from, tag),
        };
        let received = received.map_err(|e| ReduceError::Comm(e, need))?;
        let Some(received) = received else { return Ok(None) };
        let n_sent = if self.is_bf16 { n_elements.div_ceil(2) } else { n_elements };
        let (got, expected) = (device.shape(&received), vec![n_sent]);
        if got != expected {
            return Err(ReduceError::Shape { from, what: tag.payload(), expected, got });
        }
        let whole =
            if self.is_bf16 { bf16::unpack(device, &received, n_elements)? } else { received };
        Ok(Some(whole))
    }

    fn tag(&self, round: &Round) -> Tag {
        let Reduction { bucket, part, .. } = *self;
        let payload = match round.adds_up {
            Some(_) => Payload::Gradients { bucket, part },
            None => Payload::Sums { bucket, part },
        };
        Tag::new(self.step, payload)
    }
}

#[cfg(test)]
mod tests;
