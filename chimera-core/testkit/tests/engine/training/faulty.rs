//! A transport with faults.

use std::time::{Duration, Instant};

use chimera_engine::comm::{AllReduce, Comm, CommError, Endpoint, Tag, Threads, Wrap};
use chimera_engine::device::reference::Tensor;
use chimera_schedule::ids::Rank;

/// Delay before a message is lost. So its receiver has waited longer than its sender will wait for
/// the consequences.
const HEAD_START: Duration = Duration::from_millis(300);

/// The fate of a message that is sent.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Fate {
    Arrives,
    IsLost,
    Stalls(Duration),
    IsNaN,
    /// Its first number is wrong.
    IsWrong,
    /// It lacks its last number.
    IsShort,
    Panics,
}

/// A transport that treats the messages of its rank as `fate` says.
pub(crate) struct Faulty<'c, F> {
    pub(crate) inner: &'c mut Threads<Tensor>,
    pub(crate) fate: F,
}

impl<F: Send> Wrap for Faulty<'_, F> {
    type Inner = Threads<Tensor>;

    fn inner(&self) -> &Threads<Tensor> {
        self.inner
    }

    fn inner_mut(&mut self) -> &mut Threads<Tensor> {
        self.inner
    }
}

impl<F: Fn(Rank, Tag) -> Fate + Send> Comm<Tensor> for Faulty<'_, F> {
    fn send(&mut self, to: Rank, tag: Tag, mut tensor: Tensor) -> Result<(), CommError> {
        match (self.fate)(self.rank(), tag) {
            Fate::Arrives => {}
            Fate::IsLost => {
                std::thread::sleep(HEAD_START);
                return Ok(());
            }
            Fate::Stalls(time) => std::thread::sleep(time),
            Fate::IsNaN => tensor.data.fill(f64::NAN),
            Fate::IsWrong => tensor.data[0] += 1.0,
            Fate::IsShort => {
                tensor.data.pop();
                tensor.shape = vec![tensor.data.len()];
            }
            Fate::Panics => panic!("on purpose"),
        }
        self.inner.send(to, tag, tensor)
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<Tensor>, CommError> {
        self.inner.try_recv(from, tag)
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<Tensor, CommError> {
        self.inner.recv(from, tag, deadline)
    }

    fn reducer(&mut self, _: &[Rank]) -> Option<&mut dyn AllReduce<Tensor>> {
        None
    }
}
