//! Forwarding of everything that a wrapper around a transport does not change.

use std::time::{Duration, Instant};

use chimera_schedule::ids::Rank;

use super::{CommError, Endpoint, Evict, Liveness, Ordered, Position, Traffic};
use crate::fault::Fault;

/// A transport built on another one of the same ranks. It gets its [`Endpoint`] from that one, and
/// implements only what it does with tensors.
pub trait Wrap: Send {
    /// The inner transport.
    type Inner: Endpoint + ?Sized;

    /// The inner transport.
    fn inner(&self) -> &Self::Inner;

    /// The inner transport, for use.
    fn inner_mut(&mut self) -> &mut Self::Inner;

    /// Called before a wait. Must send all that this rank holds back; others may wait for it.
    fn flush(&mut self) -> Result<(), CommError> {
        Ok(())
    }

    /// Called before an abort. Whatever this rank still holds back need not be sent any more.
    fn discard(&mut self) {}
}

impl<W: Wrap + ?Sized> Liveness for W {
    fn report_progress(&mut self, position: Position) {
        self.inner_mut().report_progress(position);
    }

    fn query_progress(&mut self, deadline: Instant) -> Result<Vec<Option<Position>>, CommError> {
        self.inner_mut().query_progress(deadline)
    }

    fn evictor(&mut self, rank: Rank) -> Option<&mut dyn Evict> {
        self.inner_mut().evictor(rank)
    }

    fn pause(&mut self, time: Duration) {
        self.inner_mut().pause(time);
    }

    fn request_stop(&mut self) {
        self.inner_mut().request_stop();
    }

    fn stop_requested(&self) -> Option<bool> {
        self.inner().stop_requested()
    }
}

impl<W: Wrap + ?Sized> Endpoint for W {
    fn rank(&self) -> Rank {
        self.inner().rank()
    }

    fn n_ranks(&self) -> u32 {
        self.inner().n_ranks()
    }

    fn send_bytes(&mut self, to: Rank, bytes: Vec<u8>) -> Result<(), CommError> {
        self.inner_mut().send_bytes(to, bytes)
    }

    fn try_recv_bytes(&mut self, from: Rank) -> Result<Option<Vec<u8>>, CommError> {
        self.inner_mut().try_recv_bytes(from)
    }

    fn recv_bytes(&mut self, from: Rank, deadline: Instant) -> Result<Vec<u8>, CommError> {
        self.flush()?;
        self.inner_mut().recv_bytes(from, deadline)
    }

    fn abort(&mut self, cause: &Fault) {
        self.discard();
        self.inner_mut().abort(cause);
    }

    fn take_traffic(&mut self) -> Vec<(Rank, Traffic)> {
        self.inner_mut().take_traffic()
    }

    fn ordered(&mut self) -> Option<&mut dyn Ordered> {
        self.inner_mut().ordered()
    }
}

/// A borrowed end is an end too, so that it can be wrapped.
impl<C: Endpoint + ?Sized> Wrap for &mut C {
    type Inner = C;

    fn inner(&self) -> &C {
        self
    }

    fn inner_mut(&mut self) -> &mut C {
        self
    }
}
