//! Chimera's messages between GPUs over NCCL.
//!
//! [`Nccl`] is a [`Comm`] of a GPU's tensors. It is built on another transport of [`Host`] tensors,
//! threads or MPI, which carries everything on the host: handshakes, step syncs, and the shapes of
//! messages.
//!
//! NCCL wants the operations of a device issued in an order that all devices agree on: each runs to
//! its end before the next begins, and a send ends only after its receive has begun. So the
//! transport [needs the order](Endpoint::ordered) of a step's messages, and issues them in it,
//! group by group. A send waits for its tensor, a receive for nothing. They go from device to
//! device, and no host waits for them: a received tensor is ready on the device when NCCL's kernel
//! is done. Messages outside of the order, between steps, go through the hosts.
//!
//! The engine's thread issues messages in its calls; a second thread watches those under way.

#![allow(unsafe_code)] // NCCL is C; see `library` and `communicator`

mod communicator;
mod control;
mod library;
mod progress;
mod watch;

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use chimera_backend_cuda::{Driver, Gpu, Lane, Tensor};
use chimera_core::comm::{
    AllReduce, Comm, CommError, Endpoint, Host, HostStaged, Liveness, Ordered, OrderedMessage,
    Payload, Position, Tag, Wrap, all_gather,
};
use chimera_core::engine::Patience;
use chimera_core::fault::Fault;
use chimera_core::ids::Rank;
use rustc_hash::FxHashMap;

pub use library::Library;

use communicator::Communicator;
use control::{Header, Line};
use library::UniqueId;
use watch::Watchdog;

/// The rank that creates the communicator's id.
const ROOT: Rank = Rank(0);

/// One rank's end. [`close`](Nccl::close) leaves it, together with the other ranks.
pub struct Nccl<D: Driver, C: Comm<Host>> {
    /// Carries everything that NCCL does not.
    host: HostStaged<Gpu<D>, C>,
    watched: Arc<Watchdog<D::Lane>>,
    watching: Option<JoinHandle<()>>,
    patience: Patience,
    /// The first step that was begun, if any.
    first_step: Option<u64>,
    /// Messages to issue, in order.
    groups: VecDeque<Vec<OrderedMessage>>,
    /// Tensors to send, once they exist.
    outbox: Slots<Tensor<D::Memory>>,
    /// Tensors to receive, once they are on their way.
    inbox: Slots<Tensor<D::Memory>>,
    /// Known headers, by direction (true if this rank sends), peer and payload.
    headers: FxHashMap<(bool, Rank, Payload), Header>,
    /// Tensors that this rank sent to itself.
    own: FxHashMap<Tag, Tensor<D::Memory>>,
    counts: Counts,
}

/// Tensors of ordered messages, by peer and tag.
type Slots<T> = FxHashMap<(Rank, Tag), Option<T>>;

/// Numbers of messages that a rank has issued so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Messages sent over NCCL.
    pub sent: u64,
    /// Messages received over NCCL.
    pub received: u64,
    /// Groups of messages over NCCL, which runs them one after another.
    pub groups: u64,
    /// Messages with headers that the host transport has sent.
    pub headers: u64,
}

impl<D: Driver, C: Comm<Host>> Nccl<D, C> {
    /// Meets the other ranks of `control` within the first step's patience, with the tensors of
    /// `gpu`. Later messages may be under way for as long as the engine would wait. Another thread
    /// polls `why_over` for a failure of `control`, so that NCCL does not wait for ranks that are
    /// gone.
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
        let communicator = Communicator::new(library, id, me.0, n_ranks, deadline, &why_over)?;
        let watched = Arc::new(Watchdog::new(communicator, lane, patience.first_step));
        let watching = watched.watch(why_over);
        let watching =
            watching.map_err(|e| CommError::Failed(format!("cannot start a thread: {e}")))?;
        Ok(Self {
            host: HostStaged::new(gpu.clone(), control),
            watched,
            watching: Some(watching),
            patience,
            first_step: None,
            groups: VecDeque::new(),
            outbox: Slots::default(),
            inbox: Slots::default(),
            headers: FxHashMap::default(),
            own: FxHashMap::default(),
            counts: Counts::default(),
        })
    }

    /// Leaves when all ranks do, until `deadline`. All sent messages have then been received.
    ///
    /// # Errors
    /// If a rank does not leave, or NCCL has failed.
    pub fn close(mut self, deadline: Instant) -> Result<(), CommError> {
        self.is_finished()?;
        self.host.flush()?;
        for to in self.others() {
            self.control().send(to, Line::Bye.tag(0), Host::of_bytes(&[]))?;
        }
        for from in self.others() {
            self.until(deadline, from, "its good-bye", |nccl| {
                nccl.control().try_recv(from, Line::Bye.tag(0))
            })?;
        }
        self.until(deadline, ROOT, "the device", |nccl| Ok(nccl.watched.is_idle().then_some(())))?;
        let closed = self.watched.communicator.close(deadline);
        // If the watchdog has ended NCCL meanwhile, it knows the cause.
        closed.or_else(|error| self.watched.check().and(Err(error)))
    }

    /// Returns the numbers of messages that this rank has issued so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the transport of host tensors.
    fn control(&mut self) -> &mut C {
        self.host.inner_mut()
    }

    /// Drops the rest of the order, unless a tensor of it was sent.
    fn is_finished(&mut self) -> Result<(), CommError> {
        if let Some(((to, tag), _)) = self.outbox.iter().find(|(_, tensor)| tensor.is_some()) {
            return Err(CommError::Failed(format!("{tag} to {to} is before its turn")));
        }
        self.groups.clear();
        self.outbox.clear();
        self.inbox.retain(|_, tensor| tensor.is_some());
        Ok(())
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> + use<D, C> {
        (0..self.n_ranks()).map(Rank)
    }

    fn others(&self) -> impl Iterator<Item = Rank> + use<D, C> {
        let me = self.rank();
        self.ranks().filter(move |rank| *rank != me)
    }
}

impl<D: Driver, C: Comm<Host>> Liveness for Nccl<D, C> {
    fn report_progress(&mut self, position: Position) {
        self.host.report_progress(position);
    }

    fn query_progress(&mut self, deadline: Instant) -> Result<Vec<Option<Position>>, CommError> {
        self.host.query_progress(deadline)
    }
}

impl<D: Driver, C: Comm<Host>> Endpoint for Nccl<D, C> {
    fn rank(&self) -> Rank {
        self.host.rank()
    }

    fn n_ranks(&self) -> u32 {
        self.host.n_ranks()
    }

    fn send_bytes(&mut self, to: Rank, bytes: Vec<u8>) -> Result<(), CommError> {
        self.host.send_bytes(to, bytes)
    }

    fn try_recv_bytes(&mut self, from: Rank) -> Result<Option<Vec<u8>>, CommError> {
        self.progress()?;
        self.host.try_recv_bytes(from)
    }

    /// Messages make progress while this rank waits.
    fn recv_bytes(&mut self, from: Rank, deadline: Instant) -> Result<Vec<u8>, CommError> {
        self.host.flush()?;
        self.until(deadline, from, "control data", |nccl| nccl.host.try_recv_bytes(from))
    }

    fn abort(&mut self, cause: &Fault) {
        self.host.abort(cause);
        self.watched.communicator.abort();
    }

    fn ordered(&mut self) -> Option<&mut dyn Ordered> {
        Some(self)
    }
}

impl<D: Driver, C: Comm<Host>> Ordered for Nccl<D, C> {
    fn follow(&mut self, groups: Vec<Vec<OrderedMessage>>) -> Result<(), CommError> {
        self.host.flush()?; // a peer may wait for it before the first group
        self.progress()?;
        self.is_finished()?;
        let step = groups.iter().flatten().map(|message| message.tag.step()).next();
        self.first_step = self.first_step.or(step);
        let is_first = step.is_none() || step == self.first_step;
        self.watched.allow(if is_first { self.patience.first_step } else { self.patience.later });
        for OrderedMessage { peer, sends, tag } in groups.iter().flatten() {
            let slots = if *sends { &mut self.outbox } else { &mut self.inbox };
            slots.insert((*peer, *tag), None);
        }
        self.groups = groups.into();
        self.progress().map(drop)
    }
}

impl<D: Driver, C: Comm<Host>> Comm<Tensor<D::Memory>> for Nccl<D, C> {
    fn send(&mut self, to: Rank, tag: Tag, tensor: Tensor<D::Memory>) -> Result<(), CommError> {
        if to == self.rank() {
            self.own.insert(tag, tensor);
            return Ok(());
        }
        if !self.outbox.contains_key(&(to, tag)) {
            return self.host.send(to, tag, tensor);
        }
        self.describe(to, tag, &tensor)?;
        self.outbox.insert((to, tag), Some(tensor));
        match self.progress() {
            Err(CommError::Aborted(_)) => Ok(()), // all waiting ranks learn of it
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
        self.host.flush()?;
        self.until(deadline, from, tag, |nccl| match nccl.look(from, tag)? {
            // Only the engine can supply the tensor, after its gradient reduction.
            None if nccl.lacks_own() => {
                let (what, waited) = (tag.to_string(), Duration::ZERO);
                Err(CommError::Timeout { from, what, waited })
            }
            found => Ok(found),
        })
    }

    fn reducer(&mut self, _: &[Rank]) -> Option<&mut dyn AllReduce<Tensor<D::Memory>>> {
        None
    }
}

impl<D: Driver, C: Comm<Host>> Drop for Nccl<D, C> {
    /// A rank that leaves without the others ends NCCL's work.
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
