//! The transport of a rank on a device. Marks tensors as ready on the device before they are sent,
//! and imports received ones.

use std::time::Instant;

use chimera_schedule::ids::Rank;

use crate::comm::{AllReduce, Comm, CommError, Endpoint, Tag, Wrap, reducer_of};
use crate::device::{Device, flush, imported, record_ready, wait_ready};

pub(crate) struct DeviceComm<D, C> {
    device: D,
    comm: C,
}

impl<D, C> DeviceComm<D, C> {
    pub(crate) fn new(device: D, comm: C) -> Self {
        DeviceComm { device, comm }
    }
}

impl<D: Device, C: Endpoint> Wrap for DeviceComm<D, C> {
    type Inner = C;

    fn inner(&self) -> &C {
        &self.comm
    }

    fn inner_mut(&mut self) -> &mut C {
        &mut self.comm
    }

    /// The device works on what was requested while its rank waits.
    fn flush(&mut self) -> Result<(), CommError> {
        Ok(flush(&self.device)?)
    }
}

impl<D: Device, C: Comm<D::Tensor>> Comm<D::Tensor> for DeviceComm<D, C> {
    fn send(&mut self, to: Rank, tag: Tag, tensor: D::Tensor) -> Result<(), CommError> {
        record_ready(&self.device, &tensor)?;
        self.comm.send(to, tag, tensor)
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<D::Tensor>, CommError> {
        let received = self.comm.try_recv(from, tag)?;
        Ok(received.map(|tensor| imported(&self.device, tensor)).transpose()?)
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<D::Tensor, CommError> {
        self.flush()?;
        let received = imported(&self.device, self.comm.recv(from, tag, deadline)?)?;
        // A rank that waits here has nothing else to do meanwhile; one that polls has.
        wait_ready(&self.device, &received)?;
        Ok(received)
    }

    fn reducer(&mut self, members: &[Rank]) -> Option<&mut dyn AllReduce<D::Tensor>> {
        if self.comm.reducer(members).is_some() { Some(self) } else { None }
    }
}

impl<D: Device, C: Comm<D::Tensor>> AllReduce<D::Tensor> for DeviceComm<D, C> {
    fn all_reduce(
        &mut self,
        members: &[Rank],
        tag: Tag,
        tensor: D::Tensor,
    ) -> Result<(), CommError> {
        record_ready(&self.device, &tensor)?;
        reducer_of(&mut self.comm, members)?.all_reduce(members, tag, tensor)
    }
}
