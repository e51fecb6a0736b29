//! Chimera's messages between GPUs over NCCL.
//!
//! [`Nccl`] is a [`Comm`] of a GPU's tensors. It stands on another transport of [`Host`] tensors, threads or
//! MPI, which carries all that is the host's: what is sent and of what shape, in which order NCCL issues it
//! (see the module `order`), handshakes and agreements. The tensors themselves go from device to device, and
//! no host waits for them: what is taken is ready on the device when NCCL's kernel is done.
//!
//! Messages are issued by the engine's thread, when it calls its transport. A thread of its own watches over
//! those under way.

#![allow(unsafe_code)] // NCCL is C; see `library` and `communicator`

mod communicator;
mod control;
mod library;
mod order;
mod progress;
mod watch;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use chimera_backend_candle::gpu::{Driver, Gpu, Lane, Tensor};
use chimera_core::comm::{Comm, CommError, Endpoint, Host, Liveness, Position, Tag, all_gather};
use chimera_core::engine::Patience;
use chimera_core::fault::Fault;
use chimera_core::ids::Rank;
use rustc_hash::FxHashMap;

pub use library::Library;

use communicator::Communicator;
use control::{Header, Line};
use library::UniqueId;
use order::{Message, Order, ROOT};
use watch::Watchdog;

/// One rank's end. It is left by [`close`](Nccl::close), together with the other ranks.
pub struct Nccl<D: Driver, C: Comm<Host>> {
    control: C,
    watched: Arc<Watchdog<D::Lane>>,
    watching: Option<JoinHandle<()>>,
    patience: Patience,
    order: Order,
    /// By receiver: how many messages were announced.
    n_sent: Vec<u64>,
    /// What waits for its turn, by receiver and number.
    outbox: FxHashMap<(Rank, u64), (Tag, Tensor<D::Memory>)>,
    /// What has come and was not taken, by sender and number, with its bytes.
    inbox: FxHashMap<(Rank, u64), (D::Memory, usize)>,
    /// Headers of messages that have not come.
    headers: FxHashMap<(Rank, Tag), Header>,
    /// What this rank sent to itself.
    own: FxHashMap<Tag, Tensor<D::Memory>>,
}

impl<D: Driver, C: Comm<Host>> Nccl<D, C> {
    /// Meets the other ranks of `control` within the patience of the first step, with the tensors of `gpu`;
    /// messages may then be under way for as long as the engine would wait. `why_over` is asked by
    /// another thread whether `control` has failed, so that NCCL does not wait for who is gone.
    ///
    /// # Errors
    /// If the ranks do not meet, or NCCL refuses them.
    pub fn start(
        library: Arc<Library>,
        gpu: &Gpu<D>,
        mut control: C,
        patience: Patience,
        why_over: impl Fn() -> Option<CommError> + Send + 'static,
    ) -> Result<Self, CommError> {
        let deadline = Instant::now() + patience.first_step;
        let (me, n_ranks) = (control.rank(), control.n_ranks());
        let own = (me == ROOT).then(|| Communicator::unique_id(&library)).transpose();
        let message = own.as_ref().ok().and_then(Option::as_ref).map_or(&[][..], |id| &id.0);
        let all = all_gather(&mut control, message, deadline)?;
        own?;
        let id = all.first().and_then(|id| id.as_slice().try_into().ok()).map(UniqueId);
        let id = id.ok_or_else(|| CommError::Failed("rank 0 cannot start NCCL".into()))?;
        let lane = gpu.driver().lane()?;
        lane.enter()?;
        let communicator = Communicator::new(library, id, me.0, n_ranks, deadline)?;
        let watched = Arc::new(Watchdog::new(communicator, lane, patience.first_step));
        let watching = watched.watch(why_over);
        let watching =
            watching.map_err(|e| CommError::Failed(format!("cannot start a thread: {e}")))?;
        Ok(Self {
            control,
            watched,
            watching: Some(watching),
            patience,
            order: Order::new(me, n_ranks),
            n_sent: vec![0; n_ranks as usize],
            outbox: FxHashMap::default(),
            inbox: FxHashMap::default(),
            headers: FxHashMap::default(),
            own: FxHashMap::default(),
        })
    }

    /// Leaves when all ranks do, until `deadline`. All that was sent has then been received.
    ///
    /// # Errors
    /// If a rank does not leave, or NCCL has failed.
    pub fn close(mut self, deadline: Instant) -> Result<(), CommError> {
        let sent =
            self.until(deadline, ROOT, "its turn", |nccl| Ok(nccl.outbox.is_empty().then_some(())));
        sent?;
        for to in self.others() {
            self.control.send(to, Line::Bye.tag(0), Host::of_bytes(&[]))?;
        }
        for from in self.others() {
            self.until(deadline, from, "its good-bye", |nccl| {
                nccl.control.try_recv(from, Line::Bye.tag(0))
            })?;
        }
        self.until(deadline, ROOT, "the device", |nccl| Ok(nccl.watched.is_idle().then_some(())))?;
        self.watched.communicator.close(deadline)
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> + use<D, C> {
        (0..self.control.n_ranks()).map(Rank)
    }

    fn others(&self) -> impl Iterator<Item = Rank> + use<D, C> {
        let me = self.control.rank();
        self.ranks().filter(move |rank| *rank != me)
    }
}

impl<D: Driver, C: Comm<Host>> Liveness for Nccl<D, C> {
    fn report_progress(&mut self, position: Position) {
        self.control.report_progress(position);
    }

    fn query_progress(&mut self, deadline: Instant) -> Result<Vec<Option<Position>>, CommError> {
        self.control.query_progress(deadline)
    }
}

impl<D: Driver, C: Comm<Host>> Endpoint for Nccl<D, C> {
    fn rank(&self) -> Rank {
        self.control.rank()
    }

    fn n_ranks(&self) -> u32 {
        self.control.n_ranks()
    }

    fn send_bytes(&mut self, to: Rank, bytes: Vec<u8>) -> Result<(), CommError> {
        self.control.send_bytes(to, bytes)
    }

    fn try_recv_bytes(&mut self, from: Rank) -> Result<Option<Vec<u8>>, CommError> {
        self.progress()?;
        self.control.try_recv_bytes(from)
    }

    /// Messages go on while this rank waits: rank 0 decides on all of them.
    fn recv_bytes(&mut self, from: Rank, deadline: Instant) -> Result<Vec<u8>, CommError> {
        self.allow(deadline);
        self.until(deadline, from, "control data", |nccl| nccl.control.try_recv_bytes(from))
    }

    fn abort(&mut self, cause: &Fault) {
        self.control.abort(cause);
        self.watched.communicator.abort();
    }
}

impl<D: Driver, C: Comm<Host>> Comm<Tensor<D::Memory>> for Nccl<D, C> {
    fn send(&mut self, to: Rank, tag: Tag, tensor: Tensor<D::Memory>) -> Result<(), CommError> {
        let from = self.rank();
        if to == from {
            self.own.insert(tag, tensor);
            return Ok(());
        }
        let n_ranks = self.n_ranks();
        let outside = || CommError::Failed(format!("{to} is not one of the {n_ranks} ranks"));
        let n_sent = self.n_sent.get_mut(to.index()).ok_or_else(outside)?;
        let number = *n_sent;
        *n_sent += 1;
        let (element, shape) = (tensor.element(), tensor.shape().to_vec());
        self.control.send(to, tag, Header { number, element, shape }.write())?;
        let message = Message { from, to, number, bytes: tensor.bytes().len() as u64 };
        self.outbox.insert((to, number), (tag, tensor));
        self.order.announce(&mut self.control, message)?;
        match self.progress() {
            Err(CommError::Aborted(_)) => Ok(()), // whoever waits hears of it
            other => other.map(drop),
        }
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<Tensor<D::Memory>>, CommError> {
        self.progress()?;
        self.look(from, tag)
    }

    fn recv(
        &mut self,
        from: Rank,
        tag: Tag,
        deadline: Instant,
    ) -> Result<Tensor<D::Memory>, CommError> {
        self.allow(deadline);
        self.until(deadline, from, tag, |nccl| nccl.look(from, tag))
    }

    fn has_all_reduce(&self, _: &[Rank]) -> bool {
        false
    }
}

impl<D: Driver, C: Comm<Host>> Drop for Nccl<D, C> {
    /// Who leaves without the others ends NCCL's work.
    fn drop(&mut self) {
        self.watched.close();
        self.watched.communicator.abort();
        if let Some(watching) = self.watching.take() {
            watching.thread().unpark();
            let ended = watching.join();
            let _ = ended; // it holds nothing
        }
    }
}
