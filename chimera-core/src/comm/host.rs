//! Tensors in host memory, and how a transport of those carries the tensors of a device.

use std::time::Instant;

use super::{Comm, CommError, Position, Tag};
use crate::fault::Fault;
use crate::ids::Rank;
use crate::kernels::Kernels;

/// A tensor in host memory, as transports between processes carry it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Host {
    /// Extents.
    pub shape: Vec<usize>,
    /// Elements, row-major.
    pub data: Vec<f32>,
}

impl Host {
    /// Elements for which there should be room behind `data`, so that a transport can say there what the
    /// tensor is without moving it.
    pub const ROOM: usize = 16;
}

/// Carries the tensors of a device over a transport of [`Host`] tensors: what is sent is copied to the host,
/// once, and what comes is handed to the device.
pub struct HostStaged<K, C> {
    kernels: K,
    inner: C,
}

impl<K: Kernels, C: Comm<Host>> HostStaged<K, C> {
    /// Carries tensors of `kernels` over `inner`.
    pub fn new(kernels: K, inner: C) -> HostStaged<K, C> {
        HostStaged { kernels, inner }
    }

    fn to_device(&self, Host { shape, data }: Host) -> Result<K::Tensor, CommError> {
        Ok(self.kernels.adopt(&shape, data)?)
    }
}

impl<K: Kernels, C: Comm<Host>> Comm<K::Tensor> for HostStaged<K, C> {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn n_ranks(&self) -> u32 {
        self.inner.n_ranks()
    }

    fn send(&mut self, to: Rank, tag: Tag, tensor: K::Tensor) -> Result<(), CommError> {
        let shape = self.kernels.shape(&tensor);
        let mut data = Vec::with_capacity(shape.iter().product::<usize>() + Host::ROOM);
        self.kernels.download_into(&tensor, &mut data)?;
        self.inner.send(to, tag, Host { shape, data })
    }

    fn post(&mut self, from: Rank, tag: Tag) -> Result<(), CommError> {
        self.inner.post(from, tag)
    }

    fn try_take(&mut self, from: Rank, tag: Tag) -> Result<Option<K::Tensor>, CommError> {
        let taken = self.inner.try_take(from, tag)?;
        taken.map(|host| self.to_device(host)).transpose()
    }

    fn take(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<K::Tensor, CommError> {
        let host = self.inner.take(from, tag, deadline)?;
        self.to_device(host)
    }

    fn exchange(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>, CommError> {
        self.inner.exchange(bytes, deadline)
    }

    fn publish(&mut self, position: Position) {
        self.inner.publish(position);
    }

    fn positions(&mut self, deadline: Instant) -> Vec<Option<Position>> {
        self.inner.positions(deadline)
    }

    fn abort(&mut self, cause: &Fault) {
        self.inner.abort(cause);
    }
}
