//! Sums of gradients over replicas, in a fixed order over any transport.
//!
//! Each slice of a bucket's tensors has an owner among the replicas: the others send it their part,
//! it adds them in the order of the members, each as soon as it has all before it, and sends the sum back, unless it
//! alone has a use for it. Every member gets the same bits, and the same bits come out whatever the transport and
//! wherever tensors are cut. Where the transport is to sum by itself ([`Comm::has_sum`]), it does, and only the first
//! holds. Nothing here waits before [`finish`](Reduction::finish), so that a sum proceeds while its members compute.

use std::time::Instant;

use crate::analyze::Need;
use crate::comm::{Comm, CommError, Tag, What};
use crate::ids::{BucketId, Rank};
use crate::kernels::{DeviceError, Kernels};
use crate::lower::Slice;

/// Why a sum failed.
#[derive(Debug)]
pub(super) enum SumError {
    /// The transport, and what was needed of the other rank.
    Comm(CommError, Need),
    Device(DeviceError),
    /// What came is not of the shape of this rank's own part.
    Shape {
        from: Rank,
        what: What,
        expected: Vec<usize>,
        got: Vec<usize>,
    },
}

impl From<DeviceError> for SumError {
    fn from(error: DeviceError) -> SumError {
        SumError::Device(error)
    }
}

/// A sum under way, as one member sees it.
pub(super) struct Reduction<T> {
    bucket: BucketId,
    step: u64,
    members: Vec<Rank>,
    /// This rank among the members.
    me: usize,
    /// By tensor, in the order of its rows.
    tensors: Vec<Vec<Piece<T>>>,
    keeps_sums: bool,
}

/// One slice of a tensor.
struct Piece<T> {
    number: u32,
    shape: Vec<usize>,
    state: State<T>,
}

enum State<T> {
    /// This rank adds up the parts.
    Mine {
        own: Option<T>,
        /// Of so many members.
        sum: Option<T>,
        n_added: usize,
    },
    /// Another rank does, or the transport, from which this rank takes it as from itself.
    Theirs(Rank),
    /// Another rank does, and keeps the sum.
    Given,
    /// The sum is here.
    Done(T),
}

impl<T: Clone + Send> Reduction<T> {
    /// Starts the sum of `parts`, this rank's gradients, each in such slices. With `keeps_sums` each sum stays with
    /// its owner.
    pub(super) fn start<K, C>(
        kernels: &K,
        comm: &mut C,
        step: u64,
        bucket: BucketId,
        members: Vec<Rank>,
        slices: &[Vec<Slice>],
        keeps_sums: bool,
        parts: Vec<T>,
    ) -> Result<Reduction<T>, CommError>
    where
        K: Kernels<Tensor = T>,
        C: Comm<T>,
    {
        let by_transport = !keeps_sums && comm.has_sum(&members);
        let (rank, n) = (comm.rank(), members.len());
        let me = members.iter().position(|m| *m == rank);
        let me = me.unwrap_or_else(|| panic!("{rank} sums {bucket} and is no member"));
        let mut tensors = Vec::with_capacity(parts.len());
        let mut outgoing = Vec::new();
        let mut numbers = 0..;
        for (part, slices) in parts.into_iter().zip(slices) {
            if by_transport {
                let (number, shape) = (tensors.len() as u32, kernels.shape(&part));
                let what = What::Sum { bucket, slice: number };
                comm.sum(&members, Tag { step, what }, part)?;
                tensors.push(vec![Piece { number, shape, state: State::Theirs(rank) }]);
                continue;
            }
            let mut pieces = Vec::with_capacity(slices.len());
            let parts = cut(kernels, part, slices)?.into_iter();
            for ((part, slice), number) in parts.zip(slices).zip(&mut numbers) {
                let shape = kernels.shape(&part);
                let state = if slice.owner == me {
                    State::Mine { own: Some(part), sum: None, n_added: 0 }
                } else {
                    outgoing.push((slice.owner, number, part));
                    if keeps_sums { State::Given } else { State::Theirs(members[slice.owner]) }
                };
                pieces.push(Piece { number, shape, state });
            }
            tensors.push(pieces);
        }
        // Each begins with the member behind it, so that not all send to one at once.
        outgoing.sort_by_key(|(owner, ..)| (owner + n - me) % n);
        for (owner, slice, part) in outgoing {
            comm.send(members[owner], Tag { step, what: What::Part { bucket, slice } }, part)?;
        }
        Ok(Reduction { bucket, step, members, me, tensors, keeps_sums })
    }

    /// Gets as far as it can without waiting.
    pub(super) fn poll<K, C>(&mut self, kernels: &K, comm: &mut C) -> Result<(), SumError>
    where
        K: Kernels<Tensor = T>,
        C: Comm<T>,
    {
        self.advance(kernels, comm, |comm, from, tag| comm.try_take(from, tag))
    }

    /// Whether nothing is left to wait for.
    pub(super) fn is_done(&self) -> bool {
        let mut pieces = self.tensors.iter().flatten();
        pieces.all(|piece| matches!(piece.state, State::Done(_) | State::Given))
    }

    /// Waits for all sums until `deadline`; `None` for those that others keep. They may share memory with
    /// the other members' copies.
    pub(super) fn finish<K, C>(
        mut self,
        kernels: &K,
        comm: &mut C,
        deadline: Instant,
    ) -> Result<Vec<Option<T>>, SumError>
    where
        K: Kernels<Tensor = T>,
        C: Comm<T>,
    {
        self.advance(kernels, comm, |comm, from, tag| comm.take(from, tag, deadline).map(Some))?;
        let of = |mut pieces: Vec<Piece<T>>| match pieces.pop().map(|piece| piece.state) {
            Some(State::Done(sum)) if pieces.is_empty() => Some(sum),
            Some(State::Given) => None,
            _ => panic!("a sum ended without all its parts"),
        };
        Ok(self.tensors.into_iter().map(of).collect())
    }

    /// First gives what the others wait for, then takes what they give.
    fn advance<K, C>(
        &mut self,
        kernels: &K,
        comm: &mut C,
        take: impl Fn(&mut C, Rank, Tag) -> Result<Option<T>, CommError>,
    ) -> Result<(), SumError>
    where
        K: Kernels<Tensor = T>,
        C: Comm<T>,
    {
        let (step, bucket) = (self.step, self.bucket);
        let take = |comm: &mut C, from: Rank, what: What, expected: &[usize], need: Need| {
            let taken =
                take(comm, from, Tag { step, what }).map_err(|e| SumError::Comm(e, need))?;
            let got = taken.as_ref().map(|t| kernels.shape(t));
            match got.filter(|got| got != expected) {
                Some(got) => Err(SumError::Shape { from, what, expected: expected.to_vec(), got }),
                None => Ok(taken),
            }
        };
        let n = self.members.len();
        for pieces in &mut self.tensors {
            let is_whole = pieces.len() == 1;
            for Piece { number, shape, state } in pieces {
                let State::Mine { own, sum, n_added } = state else { continue };
                let slice = *number;
                while let Some(from) = self.members.get(*n_added) {
                    let part = match *n_added == self.me {
                        true => own.take(),
                        false => {
                            let what = What::Part { bucket, slice };
                            take(comm, *from, what, shape, Need::Part(bucket))?
                        }
                    };
                    let Some(part) = part else { break };
                    match sum {
                        Some(sum) => kernels.accumulate(sum, &part)?,
                        // Its maker has let go of a whole tensor, but not of one of which others have slices.
                        None if is_whole => *sum = Some(part),
                        None => *sum = Some(kernels.join(&[&part])?),
                    }
                    *n_added += 1;
                }
                let Some(sum) = sum.take_if(|_| *n_added == n) else { continue };
                if !self.keeps_sums {
                    for to in (1..n).map(|behind| self.members[(self.me + behind) % n]) {
                        let tag = Tag { step, what: What::Sum { bucket, slice } };
                        let sent = comm.send(to, tag, sum.clone());
                        sent.map_err(|e| SumError::Comm(e, Need::Other))?;
                    }
                }
                *state = State::Done(sum);
            }
        }
        for pieces in &mut self.tensors {
            for Piece { number, shape, state } in pieces.iter_mut() {
                let State::Theirs(owner) = *state else { continue };
                let what = What::Sum { bucket, slice: *number };
                if let Some(sum) = take(comm, owner, what, shape, Need::Sum(bucket))? {
                    *state = State::Done(sum);
                }
            }
            join(kernels, pieces)?;
        }
        Ok(())
    }
}

/// This rank's part of a tensor, in slices.
fn cut<K: Kernels>(
    kernels: &K,
    part: K::Tensor,
    slices: &[Slice],
) -> Result<Vec<K::Tensor>, DeviceError> {
    match slices {
        [_] => Ok(vec![part]),
        _ => slices.iter().map(|s| kernels.rows(&part, s.rows.start, s.rows.len())).collect(),
    }
}

/// Makes one of the slices of a tensor as soon as all are summed.
fn join<K: Kernels>(kernels: &K, pieces: &mut Vec<Piece<K::Tensor>>) -> Result<(), DeviceError> {
    let sums = pieces.iter().map(|piece| match &piece.state {
        State::Done(sum) => Some(sum),
        _ => None,
    });
    let Some(sums) = sums.collect::<Option<Vec<_>>>().filter(|sums| sums.len() > 1) else {
        return Ok(());
    };
    let sum = kernels.join(&sums)?;
    let shape = kernels.shape(&sum);
    *pieces = vec![Piece { number: pieces[0].number, shape, state: State::Done(sum) }];
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::comm::{Delayed, threads};
    use crate::kernels::reference::{Reference, Tensor};
    use crate::lower::slices;

    const SHAPES: [&[usize]; 4] = [&[3000, 3], &[5], &[1100], &[40, 30, 2]];

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
    fn summed(n: u32, slices: &[Vec<Slice>], keeps_sums: bool) -> Vec<Vec<Option<Tensor>>> {
        let delay = |tag: Tag| Duration::from_millis(format!("{tag:?}").len() as u64 * 7 % 20);
        let member = |comm| {
            let mut comm = Delayed::new(comm, delay);
            let rank: Rank = Comm::<Tensor>::rank(&comm);
            // Not in the order of ranks.
            let members = (1..n).chain([0]).map(Rank).collect();
            let (k, bucket) = (&Reference, BucketId(3));
            let parts = parts(rank.0);
            let sum = Reduction::start(k, &mut comm, 7, bucket, members, slices, keeps_sums, parts);
            let mut sum = sum.expect("started");
            for _ in 0..3 {
                sum.poll(k, &mut comm).expect("no rank fails");
                std::thread::sleep(Duration::from_millis(3));
            }
            let deadline = Instant::now() + Duration::from_secs(60);
            sum.finish(k, &mut comm, deadline).expect("no rank fails")
        };
        std::thread::scope(|scope| {
            let members = threads(n).into_iter().map(|comm| scope.spawn(move || member(comm)));
            let members: Vec<_> = members.collect();
            members.into_iter().map(|m| m.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn slices_have_the_bits_of_a_sum_in_the_order_of_the_members() {
        for n in 1..=5 {
            let mut expected = parts(1 % n);
            for part in (2..n).chain([0]).take(n as usize - 1).map(parts) {
                for (sum, part) in expected.iter_mut().zip(&part) {
                    Reference.accumulate(sum, part).expect("the reference never fails");
                }
            }
            let extents = SHAPES.map(|s| (s[0], 4 * s[1..].iter().product::<usize>()));
            let slices = slices(&extents, n as usize);
            assert_eq!(slices.iter().any(|tensor| tensor.len() > 1), n > 1);
            for sums in summed(n, &slices, false) {
                let sums: Vec<_> = sums.into_iter().flatten().collect();
                assert!(sums == expected, "{n} members");
            }
            let owned = |owner: usize| vec![Slice { rows: 0..1, owner: owner % n as usize }];
            let kept = summed(n, &[0, 1, 2, 3].map(owned), true);
            for (tensor, expected) in expected.iter().enumerate() {
                let mut sums = kept.iter().filter_map(|sums| sums[tensor].as_ref());
                assert!(sums.next() == Some(expected) && sums.next().is_none(), "{n} members");
            }
        }
    }
}
