//! A transport that withholds a rank's next gradient until one of its sums is done.

use std::time::{Duration, Instant};

use chimera_engine::comm::{AllReduce, Comm, CommError, Payload, Tag, Threads, Wrap};
use chimera_engine::device::reference::Tensor;
use chimera_schedule::effects::TokenKind;
use chimera_schedule::ids::Rank;

pub(crate) struct Withheld<'c> {
    pub(crate) inner: &'c mut Threads<Tensor>,
    /// The last step in which this rank sent a part of a sum, and the last with a finished sum.
    pub(crate) parted: Option<u64>,
    pub(crate) summed: Option<u64>,
    pub(crate) n_withheld: usize,
}

impl Withheld<'_> {
    fn is_withheld(&self, tag: Tag) -> bool {
        let is_gradient =
            matches!(tag.payload(), Payload::Token(t) if t.kind == TokenKind::Gradient);
        let is_summing = self.parted == Some(tag.step()) && self.summed != Some(tag.step());
        // The first step waits without a pause.
        tag.step() > 0 && is_gradient && is_summing
    }
}

impl Wrap for Withheld<'_> {
    type Inner = Threads<Tensor>;

    fn inner(&self) -> &Threads<Tensor> {
        self.inner
    }

    fn inner_mut(&mut self) -> &mut Threads<Tensor> {
        self.inner
    }
}

impl Comm<Tensor> for Withheld<'_> {
    fn send(&mut self, to: Rank, tag: Tag, tensor: Tensor) -> Result<(), CommError> {
        match tag.payload() {
            Payload::Gradients { .. } => self.parted = Some(tag.step()),
            Payload::Sums { .. } => self.summed = Some(tag.step()),
            _ => {}
        }
        self.inner.send(to, tag, tensor)
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<Tensor>, CommError> {
        if self.is_withheld(tag) { Ok(None) } else { self.inner.try_recv(from, tag) }
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<Tensor, CommError> {
        if self.is_withheld(tag) {
            self.n_withheld += 1;
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
            let what = tag.to_string();
            return Err(CommError::Timeout { from, what, waited: Duration::ZERO });
        }
        self.inner.recv(from, tag, deadline)
    }

    fn reducer(&mut self, _: &[Rank]) -> Option<&mut dyn AllReduce<Tensor>> {
        None
    }
}
