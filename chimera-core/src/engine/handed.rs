//! The transport as a rank on a device sees it: what it gives away is marked as ready on its device, what it takes is
//! brought to it, and the device begins what it was asked for before the rank waits.

use std::time::Instant;

use crate::comm::{Comm, CommError, Position, Tag};
use crate::fault::Fault;
use crate::ids::Rank;
use crate::kernels::Kernels;

pub(super) struct Handed<K, C> {
    kernels: K,
    comm: C,
}

impl<K, C> Handed<K, C> {
    pub(super) fn new(kernels: K, comm: C) -> Self {
        Handed { kernels, comm }
    }
}

impl<K: Kernels, C: Comm<K::Tensor>> Comm<K::Tensor> for Handed<K, C> {
    fn rank(&self) -> Rank {
        self.comm.rank()
    }

    fn n_ranks(&self) -> u32 {
        self.comm.n_ranks()
    }

    fn send(&mut self, to: Rank, tag: Tag, tensor: K::Tensor) -> Result<(), CommError> {
        self.kernels.hand_over(&tensor)?;
        self.comm.send(to, tag, tensor)
    }

    fn post(&mut self, from: Rank, tag: Tag) -> Result<(), CommError> {
        self.comm.post(from, tag)
    }

    fn try_take(&mut self, from: Rank, tag: Tag) -> Result<Option<K::Tensor>, CommError> {
        let taken = self.comm.try_take(from, tag)?;
        Ok(taken.map(|tensor| self.kernels.take_over(tensor)).transpose()?)
    }

    fn take(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<K::Tensor, CommError> {
        self.kernels.flush()?;
        let taken = self.kernels.take_over(self.comm.take(from, tag, deadline)?)?;
        // Who waits here has nothing else to do until it is there; who only looked has.
        self.kernels.wait_for(&taken)?;
        Ok(taken)
    }

    fn has_sum(&self, members: &[Rank]) -> bool {
        self.comm.has_sum(members)
    }

    fn sum(&mut self, members: &[Rank], tag: Tag, tensor: K::Tensor) -> Result<(), CommError> {
        self.kernels.hand_over(&tensor)?;
        self.comm.sum(members, tag, tensor)
    }

    fn exchange(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>, CommError> {
        self.kernels.flush()?;
        self.comm.exchange(bytes, deadline)
    }

    fn publish(&mut self, position: Position) {
        self.comm.publish(position);
    }

    fn positions(&mut self, deadline: Instant) -> Vec<Option<Position>> {
        self.comm.positions(deadline)
    }

    fn abort(&mut self, cause: &Fault) {
        self.comm.abort(cause);
    }
}
