//! Sums of gradients over replicas, in a fixed order over any transport.
//!
//! Each tensor of a bucket has an [owner](super::shards) among the replicas: the others send it their part,
//! it adds them in the order of the members and sends the sum back, unless it alone has a use for it.
//! Every member gets the same bits, and the same bits come out whatever the transport. Where the transport is
//! to sum by itself ([`Comm::has_sum`]), it does, and only the first holds. Nothing here waits before
//! [`finish`](Reduction::finish), so that a sum proceeds while its members compute.

use std::time::Instant;

use crate::analyze::Need;
use crate::comm::{Comm, CommError, Tag, What};
use crate::ids::{BucketId, Rank};
use crate::kernels::{DeviceError, Kernels};

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
    pieces: Vec<Piece<T>>,
    /// By tensor.
    shapes: Vec<Vec<usize>>,
    keeps_sums: bool,
}

/// One tensor of the bucket.
enum Piece<T> {
    /// This rank adds up the parts, by member.
    Mine(Vec<Option<T>>),
    /// Another rank does, or the transport, from which this rank takes it as from itself.
    Theirs(Rank),
    /// Another rank does, and keeps the sum.
    Given,
    /// The sum is here.
    Done(T),
}

impl<T: Clone + Send> Reduction<T> {
    /// Starts the sum of `parts`, this rank's gradients. With `keeps_sums` each sum stays with its owner.
    pub(super) fn start<K, C>(
        kernels: &K,
        comm: &mut C,
        step: u64,
        bucket: BucketId,
        members: Vec<Rank>,
        owners: &[Rank],
        keeps_sums: bool,
        parts: Vec<T>,
    ) -> Result<Reduction<T>, CommError>
    where
        K: Kernels<Tensor = T>,
        C: Comm<T>,
    {
        let shapes = parts.iter().map(|t| kernels.shape(t)).collect();
        let me = comm.rank();
        let by_transport = !keeps_sums && comm.has_sum(&members);
        let mut pieces = Vec::with_capacity(parts.len());
        for (tensor, (part, &owner)) in (0..).zip(parts.into_iter().zip(owners)) {
            pieces.push(if by_transport {
                comm.sum(&members, Tag { step, what: What::Sum { bucket, tensor } }, part)?;
                Piece::Theirs(me)
            } else if owner == me {
                let mut part = Some(part);
                Piece::Mine(
                    members.iter().map(|m| if *m == me { part.take() } else { None }).collect(),
                )
            } else {
                comm.send(owner, Tag { step, what: What::Part { bucket, tensor } }, part)?;
                if keeps_sums { Piece::Given } else { Piece::Theirs(owner) }
            });
        }
        Ok(Reduction { bucket, step, members, pieces, shapes, keeps_sums })
    }

    /// Gets as far as it can without waiting.
    pub(super) fn poll<K, C>(&mut self, kernels: &K, comm: &mut C) -> Result<(), SumError>
    where
        K: Kernels<Tensor = T>,
        C: Comm<T>,
    {
        self.advance(kernels, comm, |comm, from, tag| comm.try_take(from, tag))
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
        let done = self.pieces.into_iter().map(|piece| match piece {
            Piece::Done(sum) => Some(sum),
            Piece::Given => None,
            Piece::Mine(_) | Piece::Theirs(_) => panic!("a sum ended without all its parts"),
        });
        Ok(done.collect())
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
        let (step, bucket, shapes) = (self.step, self.bucket, &self.shapes);
        let take = |comm: &mut C, from: Rank, what: What, tensor: u32, need: Need| {
            let taken =
                take(comm, from, Tag { step, what }).map_err(|e| SumError::Comm(e, need))?;
            let got = taken.as_ref().map(|t| kernels.shape(t));
            let expected = &shapes[tensor as usize];
            match got.filter(|got| got != expected) {
                Some(got) => Err(SumError::Shape { from, what, expected: expected.clone(), got }),
                None => Ok(taken),
            }
        };
        for (tensor, piece) in (0..).zip(&mut self.pieces) {
            let Piece::Mine(parts) = piece else { continue };
            for (part, from) in parts.iter_mut().zip(&self.members) {
                if part.is_none() {
                    let what = What::Part { bucket, tensor };
                    *part = take(comm, *from, what, tensor, Need::Part(bucket))?;
                }
            }
            if parts.iter().all(Option::is_some) {
                let sum = add(kernels, std::mem::take(parts))?;
                let me = comm.rank();
                for to in self.members.iter().filter(|m| **m != me && !self.keeps_sums) {
                    let sent = comm.send(
                        *to,
                        Tag { step, what: What::Sum { bucket, tensor } },
                        sum.clone(),
                    );
                    sent.map_err(|e| SumError::Comm(e, Need::Other))?;
                }
                *piece = Piece::Done(sum);
            }
        }
        for (tensor, piece) in (0..).zip(&mut self.pieces) {
            let Piece::Theirs(owner) = *piece else { continue };
            let what = What::Sum { bucket, tensor };
            if let Some(sum) = take(comm, owner, what, tensor, Need::Sum(bucket))? {
                *piece = Piece::Done(sum);
            }
        }
        Ok(())
    }
}

/// Adds up parts in order, into the memory of the first: each part's maker has let go of it.
fn add<K: Kernels>(kernels: &K, parts: Vec<Option<K::Tensor>>) -> Result<K::Tensor, DeviceError> {
    let mut parts = parts.into_iter().flatten();
    let mut sum = match parts.next() {
        Some(first) => first,
        None => kernels.zeros(&[0])?,
    };
    for part in parts {
        kernels.accumulate(&mut sum, &part)?;
    }
    Ok(sum)
}
