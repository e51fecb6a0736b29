//! Sums of gradients over replicas, in a fixed order over any transport.
//!
//! Each tensor of a bucket has an owner among the replicas: the others send it their part, it adds them
//! in the order of the members and sends the sum back. Every member gets the same bits, and the same
//! bits come out whatever the transport. Nothing here waits before [`finish`](Reduction::finish), so
//! that a sum proceeds while its members compute.

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
}

/// One tensor of the bucket.
enum Piece<T> {
    /// This rank adds up the parts, by member.
    Mine(Vec<Option<T>>),
    /// Another rank does.
    Theirs(Rank),
    /// The sum is here.
    Done(T),
}

impl<T: Clone + Send> Reduction<T> {
    /// Starts the sum of `parts`, this rank's gradients.
    pub(super) fn start<K, C>(
        kernels: &K,
        comm: &mut C,
        step: u64,
        bucket: BucketId,
        members: Vec<Rank>,
        parts: Vec<T>,
    ) -> Result<Reduction<T>, CommError>
    where
        K: Kernels<Tensor = T>,
        C: Comm<T>,
    {
        let sizes = parts.iter().map(|t| kernels.shape(t).iter().product()).collect::<Vec<usize>>();
        let owners = owners(&sizes, members.len());
        let me = comm.rank();
        let mut pieces = Vec::with_capacity(parts.len());
        for (tensor, (part, owner)) in (0..).zip(parts.into_iter().zip(owners)) {
            let owner = members[owner];
            pieces.push(if owner == me {
                let mut part = Some(part);
                Piece::Mine(
                    members.iter().map(|m| if *m == me { part.take() } else { None }).collect(),
                )
            } else {
                comm.send(owner, Tag { step, what: What::Part { bucket, tensor } }, part)?;
                Piece::Theirs(owner)
            });
        }
        Ok(Reduction { bucket, step, members, pieces })
    }

    /// Gets as far as it can without waiting.
    pub(super) fn poll<K, C>(&mut self, kernels: &K, comm: &mut C) -> Result<(), SumError>
    where
        K: Kernels<Tensor = T>,
        C: Comm<T>,
    {
        self.advance(kernels, comm, |comm, from, tag| comm.try_take(from, tag))
    }

    /// Waits for all sums until `deadline`. They may share memory with the other members' copies.
    pub(super) fn finish<K, C>(
        mut self,
        kernels: &K,
        comm: &mut C,
        deadline: Instant,
    ) -> Result<Vec<T>, SumError>
    where
        K: Kernels<Tensor = T>,
        C: Comm<T>,
    {
        self.advance(kernels, comm, |comm, from, tag| comm.take(from, tag, deadline).map(Some))?;
        let done = self.pieces.into_iter().map(|piece| match piece {
            Piece::Done(sum) => sum,
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
        let (step, bucket) = (self.step, self.bucket);
        for (tensor, piece) in (0..).zip(&mut self.pieces) {
            let Piece::Mine(parts) = piece else { continue };
            for (part, from) in parts.iter_mut().zip(&self.members) {
                if part.is_none() {
                    let taken =
                        take(comm, *from, Tag { step, what: What::Part { bucket, tensor } });
                    *part = taken.map_err(|e| SumError::Comm(e, Need::Part(bucket)))?;
                }
            }
            if parts.iter().all(Option::is_some) {
                let sum = add(kernels, std::mem::take(parts))?;
                let me = comm.rank();
                for to in self.members.iter().filter(|m| **m != me) {
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
            let taken = take(comm, owner, Tag { step, what: What::Sum { bucket, tensor } });
            if let Some(sum) = taken.map_err(|e| SumError::Comm(e, Need::Sum(bucket)))? {
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

/// The owner of each tensor, as an index into the members: largest first, each to the least loaded.
fn owners(sizes: &[usize], n_members: usize) -> Vec<usize> {
    let mut by_size: Vec<usize> = (0..sizes.len()).collect();
    by_size.sort_by_key(|&i| std::cmp::Reverse(sizes[i]));
    let mut loads = vec![0; n_members];
    let mut owners = vec![0; sizes.len()];
    for i in by_size {
        let least = (0..n_members).min_by_key(|&m| loads[m]).unwrap_or(0);
        loads[least] += sizes[i];
        owners[i] = least;
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::owners;

    #[test]
    fn owners_share_the_load() {
        assert_eq!(owners(&[10, 3, 3, 3, 2], 2), [0, 1, 1, 1, 1]);
        assert_eq!(owners(&[2, 3, 9, 3, 4], 2), [0, 1, 0, 1, 1]);
        assert_eq!(owners(&[5, 5], 1), [0, 0]);
        assert!(owners(&[], 3).is_empty());
    }
}
