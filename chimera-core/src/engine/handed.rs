//! The transport as a rank on a device sees it: what it gives away is marked as ready on its device, and
//! what it takes is brought to it.

use std::time::Instant;

use crate::comm::{Comm, CommError, Endpoint, Tag, Wrap};
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

impl<K: Kernels, C: Endpoint> Wrap for Handed<K, C> {
    type Inner = C;

    fn inner(&self) -> &C {
        &self.comm
    }

    fn inner_mut(&mut self) -> &mut C {
        &mut self.comm
    }

    /// A device works on what it was asked for while its rank waits.
    fn flush(&mut self) -> Result<(), CommError> {
        Ok(self.kernels.flush()?)
    }
}

impl<K: Kernels, C: Comm<K::Tensor>> Comm<K::Tensor> for Handed<K, C> {
    fn send(&mut self, to: Rank, tag: Tag, tensor: K::Tensor) -> Result<(), CommError> {
        self.kernels.hand_over(&tensor)?;
        self.comm.send(to, tag, tensor)
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<K::Tensor>, CommError> {
        let received = self.comm.try_recv(from, tag)?;
        Ok(received.map(|tensor| self.kernels.take_over(tensor)).transpose()?)
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<K::Tensor, CommError> {
        self.flush()?;
        let received = self.kernels.take_over(self.comm.recv(from, tag, deadline)?)?;
        // Who waits here has nothing else to do until it is there; who only looked has.
        self.kernels.wait_for(&received)?;
        Ok(received)
    }

    fn has_all_reduce(&self, members: &[Rank]) -> bool {
        self.comm.has_all_reduce(members)
    }

    fn all_reduce(
        &mut self,
        members: &[Rank],
        tag: Tag,
        tensor: K::Tensor,
    ) -> Result<(), CommError> {
        self.kernels.hand_over(&tensor)?;
        self.comm.all_reduce(members, tag, tensor)
    }
}
