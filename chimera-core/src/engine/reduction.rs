//! Gradient reduction: sums over replicas, in a fixed order over any transport.
//!
//! The gradients of a bucket lie in one buffer, of which parts go from replica to replica as [`collective`] says.
//! Every member gets the same bits, and the same bits come out whatever the transport. Where the transport is to
//! reduce by itself ([`Comm::has_all_reduce`]), it does, and only the first holds. Nothing here waits before
//! [`wait`](Reduction::wait), so that a reduction proceeds while its members compute.
//!
//! [`collective`]: crate::collective

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bf16;
use super::layout::{BucketLayout, Piece, cut};
use crate::analyze::Need;
use crate::collective::{Part, Round, rounds, segments};
use crate::comm::{Comm, CommError, Payload, Tag};
use crate::device::{Device, DeviceError};
use crate::ids::{BucketId, Rank};

/// Why a reduction failed.
#[derive(Debug)]
pub(super) enum ReduceError {
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
    pub(super) fn waited_mut(&mut self) -> Option<&mut Duration> {
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
pub(super) struct Reduction<T> {
    bucket: BucketId,
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
    pub(super) fn start<D, C>(
        device: &D,
        comm: &mut C,
        step: u64,
        bucket: BucketId,
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
        if !layout.keeps_sums() && !is_bf16 && comm.has_all_reduce(&members) {
            let buffer = cut(device, &held, &(0..layout.n_elements()))?;
            comm.all_reduce(&members, Tag::new(step, Payload::Sums { bucket }), buffer)?;
            let from_itself = Part { peer: me, segments: 0..n };
            rounds = vec![Round { recvs: vec![from_itself], ..Round::default() }];
            held.clear();
        }
        let mut reduction = Reduction {
            bucket,
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
    pub(super) fn poll<D, C>(&mut self, device: &D, comm: &mut C) -> Result<(), ReduceError>
    where
        D: Device<Tensor = T>,
        C: Comm<T>,
    {
        self.advance(device, comm, None)
    }

    /// Whether nothing is left to wait for.
    pub(super) fn is_done(&self) -> bool {
        self.at == self.rounds.len()
    }

    /// Waits for all sums until `deadline`, and may be called again.
    pub(super) fn wait<D, C>(
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
    pub(super) fn finish<D>(self, device: &D) -> Result<Vec<Option<T>>, ReduceError>
    where
        D: Device<Tensor = T>,
    {
        let own = segments(self.members.len()).iter().position(|member| *member == self.me);
        let own = own.map_or(0..0, |position| self.layout.elements(&(position..position + 1)));
        let sums = self.layout.tensors().map(|(place, shape)| {
            let is_kept = own.start <= place.start && place.end <= own.end;
            match self.layout.keeps_sums() && !is_kept {
                true => Ok(None),
                false => device.reshape(&cut(device, &self.held, place)?, shape).map(Some),
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
                let part = match adds && peer == self.me {
                    true => self.held.pop().map(|own| own.tensor),
                    false => self.recv(device, comm, peer, elements.len(), deadline)?,
                };
                let Some(tensor) = part else { return Ok(()) };
                match adds {
                    true => self.add(device, &tensor)?,
                    false => self.hold(Piece { elements, tensor }),
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
        let need = match self.at == 0 && round.adds_up.is_some() {
            true => Need::Part(self.bucket),
            false => Need::Sum(self.bucket),
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
        let bucket = self.bucket;
        let payload = match round.adds_up {
            Some(_) => Payload::Gradients { bucket },
            None => Payload::Sums { bucket },
        };
        Tag::new(self.step, payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::MOST_DIRECT;
    use crate::comm::{Delayed, Endpoint, threads};
    use crate::device::reference::{Reference, Tensor};

    const SHAPES: [&[usize]; 5] = [&[3000, 3], &[5], &[1100], &[40, 30, 2], &[0, 3]];

    /// What a member has of the tensors: of such sizes that another order of adding gives other bits.
    fn parts(member: u32) -> Vec<Tensor> {
        let value = |i: usize| ((i as f64 + 0.1) * f64::from(member + 1)).sin() / (1.0 + i as f64);
        let of = |shape: &&[usize]| {
            let data = (0..shape.iter().product()).map(value).collect();
            Tensor::new(shape, data)
        };
        SHAPES.iter().map(of).collect()
    }

    /// The sums of all members, whose messages take some time.
    fn reduced(n: u32, layout: BucketLayout, is_bf16: bool) -> Vec<Vec<Option<Tensor>>> {
        let layout = (Arc::new(layout), is_bf16);
        let delay = |tag: Tag| Duration::from_millis(format!("{tag:?}").len() as u64 * 7 % 20);
        let member = |comm| {
            let mut comm = Delayed::new(comm, delay);
            let rank: Rank = comm.rank();
            // Not in the order of ranks.
            let members = (1..n).chain([0]).map(Rank).collect();
            let (device, bucket, layout) = (&Reference, BucketId(3), layout.clone());
            let parts = parts(rank.0);
            let sum = Reduction::start(device, &mut comm, 7, bucket, members, layout, parts);
            let mut sum = sum.expect("started");
            for _ in 0..3 {
                sum.poll(device, &mut comm).expect("no rank fails");
                std::thread::sleep(Duration::from_millis(3));
            }
            let deadline = Instant::now() + Duration::from_secs(60);
            sum.wait(device, &mut comm, deadline).expect("no rank fails");
            sum.finish(device).expect("no rank fails")
        };
        std::thread::scope(|scope| {
            let members = threads(n).into_iter().map(|comm| scope.spawn(move || member(comm)));
            let members: Vec<_> = members.collect();
            members.into_iter().map(|m| m.join().expect("no panic")).collect()
        })
    }

    fn shapes() -> Vec<Vec<usize>> {
        SHAPES.iter().map(|shape| shape.to_vec()).collect()
    }

    fn plus(mut sum: Vec<Tensor>, parts: Vec<Tensor>) -> Vec<Tensor> {
        for (sum, part) in sum.iter_mut().zip(&parts) {
            Reference.accumulate(sum, part).expect("the reference never fails");
        }
        sum
    }

    /// The sum in the order of members, and beyond the most that reduce directly along the tree over them; each part
    /// and each sum of a round after `rounded`.
    fn expected(n: u32, rounded: fn(Vec<Tensor>) -> Vec<Tensor>) -> Vec<Tensor> {
        let mut terms: Vec<_> = (1..n).chain([0]).map(|member| rounded(parts(member))).collect();
        if n as usize > MOST_DIRECT {
            let core = 1 << n.ilog2();
            for extra in terms.split_off(core).into_iter().enumerate() {
                let (partner, part) = extra;
                terms[partner] = rounded(plus(terms[partner].clone(), part));
            }
            while terms.len() > 1 {
                let upper = terms.split_off(terms.len() / 2);
                terms = terms.into_iter().zip(upper).map(|(a, b)| rounded(plus(a, b))).collect();
            }
        }
        rounded(terms.into_iter().reduce(plus).expect("members"))
    }

    fn in_bf16(tensors: Vec<Tensor>) -> Vec<Tensor> {
        let round = |tensor: &Tensor| {
            let flat = bf16::round(&Reference, tensor).expect("the reference never fails");
            Tensor::new(&Reference.shape(tensor), flat.data)
        };
        tensors.iter().map(round).collect()
    }

    #[test]
    fn sums_have_the_bits_of_one_order_or_tree() {
        for n in [1, 2, 3, 4, 5, 8, 9, 13, 16, 33] {
            let expected = expected(n, |whole| whole);
            for sums in reduced(n, BucketLayout::shared(shapes(), n as usize), false) {
                let sums: Vec<_> = sums.into_iter().flatten().collect();
                assert!(sums == expected, "{n} members");
            }
            let owners = [0, 1, 2, 3, 4].map(|tensor| (tensor * 5 + 1) % n as usize);
            let kept = reduced(n, BucketLayout::owned(shapes(), &owners, n as usize), false);
            for (tensor, expected) in expected.iter().enumerate().filter(|(t, _)| *t < 4) {
                let mut sums = kept.iter().filter_map(|sums| sums[tensor].as_ref());
                assert!(sums.next() == Some(expected) && sums.next().is_none(), "{n} members");
            }
        }
    }

    #[test]
    fn parts_and_sums_in_bf16_are_the_same_for_all() {
        for n in [2, 3, 8, 9, 13] {
            let expected = expected(n, in_bf16);
            for sums in reduced(n, BucketLayout::shared(shapes(), n as usize), true) {
                let sums: Vec<_> = sums.into_iter().flatten().collect();
                assert!(sums == expected, "{n} members");
            }
        }
    }
}
