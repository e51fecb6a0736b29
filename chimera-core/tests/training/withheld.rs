//! A transport that lets a rank which sums wait for its next gradient until a sum of its own is done.

use std::time::{Duration, Instant};

use chimera_core::comm::{Comm, CommError, Position, Tag, Threads, What};
use chimera_core::effects::TokenKind;
use chimera_core::fault::Fault;
use chimera_core::ids::Rank;
use chimera_core::kernels::reference::Tensor;

pub(crate) struct Withheld<'c> {
    pub(crate) inner: &'c mut Threads<Tensor>,
    /// The last step of which this rank has sent a part, and a sum.
    pub(crate) parted: Option<u64>,
    pub(crate) summed: Option<u64>,
    pub(crate) n_withheld: usize,
}

impl Withheld<'_> {
    fn is_withheld(&self, tag: Tag) -> bool {
        let is_gradient = matches!(tag.what, What::Token(t) if t.kind == TokenKind::Gradient);
        let is_summing = self.parted == Some(tag.step) && self.summed != Some(tag.step);
        // The first step waits without a break.
        tag.step > 0 && is_gradient && is_summing
    }
}

impl Comm<Tensor> for Withheld<'_> {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn n_ranks(&self) -> u32 {
        self.inner.n_ranks()
    }

    fn send(&mut self, to: Rank, tag: Tag, tensor: Tensor) -> Result<(), CommError> {
        match tag.what {
            What::Part { .. } => self.parted = Some(tag.step),
            What::Sum { .. } => self.summed = Some(tag.step),
            _ => {}
        }
        self.inner.send(to, tag, tensor)
    }

    fn post(&mut self, from: Rank, tag: Tag) -> Result<(), CommError> {
        self.inner.post(from, tag)
    }

    fn try_take(&mut self, from: Rank, tag: Tag) -> Result<Option<Tensor>, CommError> {
        if self.is_withheld(tag) { Ok(None) } else { self.inner.try_take(from, tag) }
    }

    fn take(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<Tensor, CommError> {
        if self.is_withheld(tag) {
            self.n_withheld += 1;
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
            let what = tag.what.to_string();
            return Err(CommError::Timeout { from, what, waited: Duration::ZERO });
        }
        self.inner.take(from, tag, deadline)
    }

    fn has_sum(&self, _: &[Rank]) -> bool {
        false
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
