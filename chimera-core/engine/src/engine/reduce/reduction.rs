//! Gradient reduction: sums over replicas, in a fixed order over any transport.
//!
//! The gradients of a bucket, or of a part of it, lie in one buffer, of which segments go from replica to replica as
//! [`collective`] says. Every member gets the same bits, and the same bits come out whatever the transport. Where the transport is to
//! reduce by itself ([`Comm::reducer`]), it does, and only the first holds. Nothing here waits before
//! [`wait`](Reduction::wait), so that a reduction proceeds while its members compute.
//!
//! [`collective`]: chimera_schedule::collective

use std::sync::Arc;
use std::time::{Duration, Instant};

use chimera_schedule::analyze::Need;
use chimera_schedule::collective::{Part, Round, rounds, segments};
use chimera_schedule::ids::{BucketId, Rank};

use crate::comm::{Comm, CommError, Payload, Tag};
use crate::device::{Device, DeviceError};
use crate::engine::reduce::bf16;
use crate::engine::reduce::layout::{BucketLayout, Piece, cut};

/// Why a reduction failed.
#[derive(Debug)]
pub(crate) enum ReduceError {
    /// The transport, and what was needed of the other rank.
    Comm(CommError, Need),
    Device(DeviceError),
    /// What came is not of the shape of this rank's own part.
    Shape {
        from: Rank,
        what: Payload,
        expected: Vec<usize>,
        got: Vec<usize>,
    },
}

impl ReduceError {
    /// How long the wait was, if it was too long.
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

/// A reduction under way, as one member sees it.
pub(crate) struct Reduction<T> {
    bucket: BucketId,
    /// Which part of it.
    part: u32,
    step: u64,
    members: Vec<Rank>,
    /// This rank among the members.
    me: usize,
    layout: Arc<BucketLayout>,
    /// Whether parts and sums are rounded to bf16 and sent so.
    is_bf16: bool,
    rounds: Vec<Round>,
    /// The round under way, and how many of its messages have come.
    at: usize,
    n_received: usize,
    /// What this rank has of the buffer and still needs, in order.
    held: Vec<Piece<T>>,
    /// In a round that adds: the sum so far.
    sum: Option<T>,
}

impl<T: Clone + Send> Reduction<T> {
    /// Starts the reduction of `parts`, this rank's gradients, which lie in the buffer as `layout` says and go between
    /// ranks in bf16 where it says so.
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
        let me = me.unwrap_or_else(|| panic!("{rank} reduces {bucket} and is no member"));
        let mut held = layout.pieces(device, parts)?;
        let mut rounds = rounds(n, me, layout.keeps_sums());
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

    /// Gets as far as it can without waiting.
    pub(crate) fn poll<D, C>(&mut self, device: &D, comm: &mut C) -> Result<(), ReduceError>
    where
        D: Device<Tensor = T>,
        C: Comm<T>,
    {
        self.advance(device, comm, None)
    }

    /// Whether nothing is left to wait for.
    pub(crate) fn is_done(&self) -> bool {
        self.at == self.rounds.len()
    }

    /// Waits for all sums until `deadline`, and may be called again.
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

    /// The sums, once nothing is left to wait for; `None` for those that others keep. They may share memory with the
    /// other members' copies.
    pub(crate) fn finish<D>(self, device: &D) -> Result<Vec<Option<T>>, ReduceError>
    where
        D: Device<Tensor = T>,
    {
        let own = segments(self.members.len()).iter().position(|member| *member == self.me);
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

    /// Receives what the round under way waits for, and begins the next one, until something is not there; with a
    /// deadline it waits for all.
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

    /// Sends what the round that begins says. In a round that adds this rank keeps only what it is to add to.
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

    /// What the others would receive of a tensor.
    fn rounded<D: Device<Tensor = T>>(&self, device: &D, tensor: T) -> Result<T, DeviceError> {
        if self.is_bf16 { bf16::round(device, &tensor) } else { Ok(tensor) }
    }

    /// Adds another part to the sum of the round.
    fn add<D: Device<Tensor = T>>(&mut self, device: &D, part: &T) -> Result<(), DeviceError> {
        match &mut self.sum {
            Some(sum) => device.accumulate(sum, part)?,
            // Others may still read the memory of the part.
            None => self.sum = Some(device.join(&[part])?),
        }
        Ok(())
    }

    /// Keeps a sum that has come.
    fn hold(&mut self, piece: Piece<T>) {
        let at = self.held.partition_point(|held| held.elements.start < piece.elements.start);
        self.held.insert(at, piece);
    }

    /// What a member sends in the round under way, if it is there; with a deadline it is waited for.
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
        // In the first round all send what they have; later ones wait for what others send.
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
