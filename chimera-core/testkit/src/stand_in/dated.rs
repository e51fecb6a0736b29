//! Tensors with arrival times, between threads and between processes.

use std::time::{Duration, Instant};

use chimera_engine::comm::{AllReduce, Comm, CommError, Host, Tag, Wrap};
use chimera_engine::device::reference::Tensor;
use chimera_schedule::ids::Rank;

/// A tensor and its arrival time.
pub(super) struct Dated<T> {
    pub(super) tensor: T,
    pub(super) due: Instant,
}

/// Carries dated tensors between processes without values, which are never read.
pub(super) struct Posted<C> {
    pub(super) inner: C,
    /// The moment from which all ranks count.
    pub(super) epoch: Instant,
}

const NUMBER: usize = size_of::<u64>();

impl<C> Posted<C> {
    fn write(&self, dated: &Dated<Tensor>) -> Host {
        let since = dated.due.saturating_duration_since(self.epoch);
        let extents = dated.tensor.shape.iter().map(|extent| *extent as u64);
        let numbers = std::iter::once(since.as_nanos() as u64).chain(extents);
        Host::of_bytes(&numbers.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
    }

    fn read(&self, from: Rank, host: Host) -> Result<Dated<Tensor>, CommError> {
        let bytes = host.into_bytes().unwrap_or_default();
        let numbers = bytes.as_chunks::<NUMBER>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let numbers: Vec<u64> = numbers.collect();
        let Some((since, extents)) = numbers.split_first() else {
            let reason = "a message without a date".to_string();
            return Err(CommError::Unreadable { from, reason });
        };
        let shape: Vec<usize> = extents.iter().map(|extent| *extent as usize).collect();
        let due = self.epoch + Duration::from_nanos(*since);
        Ok(Dated { tensor: Tensor::zeros(&shape), due })
    }
}

impl<C: Comm<Host>> Wrap for Posted<C> {
    type Inner = C;

    fn inner(&self) -> &C {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut C {
        &mut self.inner
    }
}

impl<C: Comm<Host>> Comm<Dated<Tensor>> for Posted<C> {
    fn send(&mut self, to: Rank, tag: Tag, dated: Dated<Tensor>) -> Result<(), CommError> {
        let host = self.write(&dated);
        self.inner.send(to, tag, host)
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<Dated<Tensor>>, CommError> {
        let host = self.inner.try_recv(from, tag)?;
        host.map(|host| self.read(from, host)).transpose()
    }

    fn recv(
        &mut self,
        from: Rank,
        tag: Tag,
        deadline: Instant,
    ) -> Result<Dated<Tensor>, CommError> {
        let host = self.inner.recv(from, tag, deadline)?;
        self.read(from, host)
    }

    fn reducer(&mut self, _: &[Rank]) -> Option<&mut dyn AllReduce<Dated<Tensor>>> {
        None
    }
}
