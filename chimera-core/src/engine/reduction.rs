//! Gradient reduction: sums over replicas, in a fixed order over any transport.
//!
//! The gradients of a bucket lie in one buffer, of which parts go from replica to replica as [`collective`] says.
//! Every member gets the same bits, and the same bits come out whatever the transport. Where the transport is to
//! reduce by itself ([`Comm::has_all_reduce`]), it does, and only the first holds. Nothing here waits before
//! [`finish`](Reduction::finish), so that a reduction proceeds while its members compute.
//!
//! [`collective`]: crate::collective

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::layout::Layout;
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
    layout: Arc<Layout>,
    rounds: Vec<Round>,
    /// The round under way.
    at: usize,
    /// What this rank has of the buffer and still needs: segments, in order.
    held: Vec<Held<T>>,
    /// In a round that adds: the sum of the first members, and how many they are.
    sum: Option<T>,
    n_added: usize,
}

/// A part of the buffer.
struct Held<T> {
    segments: Range<usize>,
    elements: Range<usize>,
    tensor: T,
}

impl<T: Clone + Send> Reduction<T> {
    /// Starts the reduction of `parts`, this rank's gradients, which lie in the buffer as `layout` says.
    pub(super) fn start<D, C>(
        device: &D,
        comm: &mut C,
        step: u64,
        bucket: BucketId,
        members: Vec<Rank>,
        layout: Arc<Layout>,
        parts: Vec<T>,
    ) -> Result<Reduction<T>, CommError>
    where
        D: Device<Tensor = T>,
        C: Comm<T>,
    {
        let (rank, n) = (comm.rank(), members.len());
        let me = members.iter().position(|member| *member == rank);
        let me = me.unwrap_or_else(|| panic!("{rank} reduces {bucket} and is no member"));
        let buffer = layout.fill(device, &parts)?;
        drop(parts);
        let (all, elements) = (0..n, 0..layout.n_elements());
        let (rounds, held) = if !layout.keeps_sums() && comm.has_all_reduce(&members) {
            comm.all_reduce(&members, Tag::new(step, Payload::Sums { bucket }), buffer)?;
            let from_itself = Part { peer: me, segments: all };
            (vec![Round { recvs: vec![from_itself], ..Round::default() }], Vec::new())
        } else {
            let whole = Held { segments: all, elements, tensor: buffer };
            (rounds(n, me, layout.keeps_sums()), vec![whole])
        };
        let mut reduction = Reduction {
            bucket,
            step,
            members,
            me,
            layout,
            rounds,
            at: 0,
            held,
            sum: None,
            n_added: 0,
        };
        reduction.send(device, comm)?;
        Ok(reduction)
    }

    /// Gets as far as it can without waiting.
    pub(super) fn poll<D, C>(&mut self, device: &D, comm: &mut C) -> Result<(), ReduceError>
    where
        D: Device<Tensor = T>,
        C: Comm<T>,
    {
        self.advance(device, comm, |comm, from, tag| comm.try_recv(from, tag))
    }

    /// Whether nothing is left to wait for.
    pub(super) fn is_done(&self) -> bool {
        self.at == self.rounds.len()
    }

    /// Waits for all sums until `deadline`; `None` for those that others keep. They may share memory with
    /// the other members' copies.
    pub(super) fn finish<D, C>(
        mut self,
        device: &D,
        comm: &mut C,
        deadline: Instant,
    ) -> Result<Vec<Option<T>>, ReduceError>
    where
        D: Device<Tensor = T>,
        C: Comm<T>,
    {
        self.advance(device, comm, |comm, from, tag| comm.recv(from, tag, deadline).map(Some))?;
        let own = segments(self.members.len()).iter().position(|member| *member == self.me);
        let own = own.map_or(0..0, |position| self.layout.elements(&(position..position + 1)));
        let shapes = self.layout.shapes().iter().enumerate();
        let sums = shapes.map(|(tensor, shape)| {
            let place = self.layout.place(tensor);
            let is_kept = own.start <= place.start && place.end <= own.end;
            if self.layout.keeps_sums() && !is_kept {
                return Ok(None);
            }
            if place.is_empty() {
                return device.zeros(shape).map(Some);
            }
            device.reshape(&self.cut(device, place)?, shape).map(Some)
        });
        Ok(sums.collect::<Result<_, DeviceError>>()?)
    }

    /// Receives what the round under way waits for, and begins the next one, until something is not there.
    fn advance<D, C>(
        &mut self,
        device: &D,
        comm: &mut C,
        recv: impl Fn(&mut C, Rank, Tag) -> Result<Option<T>, CommError>,
    ) -> Result<(), ReduceError>
    where
        D: Device<Tensor = T>,
        C: Comm<T>,
    {
        while let Some(round) = self.rounds.get(self.at) {
            let (adds, recvs) = (round.adds, round.recvs.clone());
            let is_here = match adds {
                true => self.add(device, comm, &recv, &recvs)?,
                false => self.gather(device, comm, &recv, &recvs)?,
            };
            if !is_here {
                return Ok(());
            }
            self.at += 1;
            let sent = self.send(device, comm);
            sent.map_err(|e| ReduceError::Comm(e, Need::Other))?;
        }
        Ok(())
    }

    /// Sends what the round that begins says. Of a round that adds this rank keeps what it is to add to.
    fn send<D, C>(&mut self, device: &D, comm: &mut C) -> Result<(), CommError>
    where
        D: Device<Tensor = T>,
        C: Comm<T>,
    {
        let Some(round) = self.rounds.get(self.at) else { return Ok(()) };
        for Part { peer, segments } in &round.sends {
            let elements = self.layout.elements(segments);
            if !elements.is_empty() {
                let part = self.cut(device, &elements)?;
                comm.send(self.members[*peer], self.tag(round.adds), part)?;
            }
        }
        if round.adds {
            self.held = match round.recvs.first() {
                Some(Part { segments, .. }) => {
                    let elements = self.layout.elements(segments);
                    let segments = segments.clone();
                    if elements.is_empty() {
                        Vec::new()
                    } else {
                        let tensor = self.cut(device, &elements)?;
                        vec![Held { segments, elements, tensor }]
                    }
                }
                None => Vec::new(),
            };
        }
        Ok(())
    }

    /// Adds what the members send to what this rank holds, in the order of members and as far as it is there; whether
    /// that is all.
    fn add<D, C>(
        &mut self,
        device: &D,
        comm: &mut C,
        recv: &impl Fn(&mut C, Rank, Tag) -> Result<Option<T>, CommError>,
        recvs: &[Part],
    ) -> Result<bool, ReduceError>
    where
        D: Device<Tensor = T>,
        C: Comm<T>,
    {
        let Some(elements) = self.held.first().map(|held| held.elements.clone()) else {
            return Ok(true);
        };
        let mut adding: Vec<usize> = recvs.iter().map(|part| part.peer).chain([self.me]).collect();
        adding.sort_unstable();
        while let Some(&member) = adding.get(self.n_added) {
            let part = match member == self.me {
                true => Some(self.held[0].tensor.clone()),
                false => self.recv(device, comm, recv, member, elements.len())?,
            };
            let Some(part) = part else { return Ok(false) };
            match &mut self.sum {
                Some(sum) => device.accumulate(sum, &part)?,
                // Others may still read the memory of the part.
                None => self.sum = Some(device.join(&[&part])?),
            }
            self.n_added += 1;
        }
        if let Some(sum) = self.sum.take() {
            self.held[0].tensor = sum;
        }
        self.n_added = 0;
        Ok(true)
    }

    /// Receives sums, as far as they are there; whether those are all.
    fn gather<D, C>(
        &mut self,
        device: &D,
        comm: &mut C,
        recv: &impl Fn(&mut C, Rank, Tag) -> Result<Option<T>, CommError>,
        recvs: &[Part],
    ) -> Result<bool, ReduceError>
    where
        D: Device<Tensor = T>,
        C: Comm<T>,
    {
        let mut is_all = true;
        for Part { peer, segments } in recvs {
            let elements = self.layout.elements(segments);
            if elements.is_empty() || self.held.iter().any(|held| held.segments == *segments) {
                continue;
            }
            match self.recv(device, comm, recv, *peer, elements.len())? {
                Some(tensor) => {
                    let at = self.held.partition_point(|held| held.elements.start < elements.start);
                    self.held.insert(at, Held { segments: segments.clone(), elements, tensor });
                }
                None => is_all = false,
            }
        }
        Ok(is_all)
    }

    /// What a member sends in the round under way, if it is there.
    fn recv<D, C>(
        &self,
        device: &D,
        comm: &mut C,
        recv: &impl Fn(&mut C, Rank, Tag) -> Result<Option<T>, CommError>,
        member: usize,
        n_elements: usize,
    ) -> Result<Option<T>, ReduceError>
    where
        D: Device<Tensor = T>,
        C: Comm<T>,
    {
        let (from, tag) = (self.members[member], self.tag(self.rounds[self.at].adds));
        // In the first round all send what they have; later ones wait for what others send.
        let need = if self.at == 0 && self.rounds[0].adds {
            Need::Part(self.bucket)
        } else {
            Need::Sum(self.bucket)
        };
        let received = recv(comm, from, tag).map_err(|e| ReduceError::Comm(e, need))?;
        let got = received.as_ref().map(|tensor| device.shape(tensor));
        match got.filter(|got| *got != [n_elements]) {
            Some(got) => {
                let (what, expected) = (tag.payload(), vec![n_elements]);
                Err(ReduceError::Shape { from, what, expected, got })
            }
            None => Ok(received),
        }
    }

    fn tag(&self, adds: bool) -> Tag {
        let bucket = self.bucket;
        let payload = if adds { Payload::Gradients { bucket } } else { Payload::Sums { bucket } };
        Tag::new(self.step, payload)
    }

    /// These elements of the buffer, which this rank holds.
    fn cut<D: Device<Tensor = T>>(
        &self,
        device: &D,
        elements: &Range<usize>,
    ) -> Result<T, DeviceError> {
        let mut parts = Vec::new();
        for Held { elements: own, tensor, .. } in &self.held {
            let (start, end) = (elements.start.max(own.start), elements.end.min(own.end));
            match start < end {
                true if own.start == start && own.end == end => parts.push(tensor.clone()),
                true => parts.push(device.rows(tensor, start - own.start, end - start)?),
                false => {}
            }
        }
        match parts.len() {
            0 => panic!("elements {elements:?} of {} are not held", self.bucket),
            1 => Ok(parts.remove(0)),
            _ => device.join(&parts.iter().collect::<Vec<_>>()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
    fn reduced(n: u32, layout: Layout) -> Vec<Vec<Option<Tensor>>> {
        let layout = Arc::new(layout);
        let delay = |tag: Tag| Duration::from_millis(format!("{tag:?}").len() as u64 * 7 % 20);
        let member = |comm| {
            let mut comm = Delayed::new(comm, delay);
            let rank: Rank = comm.rank();
            // Not in the order of ranks.
            let members = (1..n).chain([0]).map(Rank).collect();
            let (device, bucket, layout) = (&Reference, BucketId(3), Arc::clone(&layout));
            let parts = parts(rank.0);
            let sum = Reduction::start(device, &mut comm, 7, bucket, members, layout, parts);
            let mut sum = sum.expect("started");
            for _ in 0..3 {
                sum.poll(device, &mut comm).expect("no rank fails");
                std::thread::sleep(Duration::from_millis(3));
            }
            let deadline = Instant::now() + Duration::from_secs(60);
            sum.finish(device, &mut comm, deadline).expect("no rank fails")
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

    /// The sum in the order of members, and beyond the most that reduce directly along the tree over them.
    fn expected(n: u32) -> Vec<Tensor> {
        let mut terms: Vec<_> = (1..n).chain([0]).map(parts).collect();
        if n as usize > MOST_DIRECT {
            let core = 1 << n.ilog2();
            for extra in terms.split_off(core).into_iter().enumerate() {
                let (partner, part) = extra;
                terms[partner] = plus(terms[partner].clone(), part);
            }
            while terms.len() > 1 {
                let upper = terms.split_off(terms.len() / 2);
                terms = terms.into_iter().zip(upper).map(|(a, b)| plus(a, b)).collect();
            }
        }
        terms.into_iter().reduce(plus).expect("members")
    }

    #[test]
    fn sums_have_the_bits_of_one_order_or_tree() {
        for n in [1, 2, 3, 4, 5, 8, 9, 13, 16, 33] {
            let expected = expected(n);
            for sums in reduced(n, Layout::shared(shapes(), n as usize)) {
                let sums: Vec<_> = sums.into_iter().flatten().collect();
                assert!(sums == expected, "{n} members");
            }
            let owners = [0, 1, 2, 3, 4].map(|tensor| (tensor * 5 + 1) % n as usize);
            let kept = reduced(n, Layout::owned(shapes(), &owners, n as usize));
            for (tensor, expected) in expected.iter().enumerate().filter(|(t, _)| *t < 4) {
                let mut sums = kept.iter().filter_map(|sums| sums[tensor].as_ref());
                assert!(sums.next() == Some(expected) && sums.next().is_none(), "{n} members");
            }
        }
    }
}
