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
mod library;
mod order;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use chimera_backend_cuda::gpu::{Driver, Element, Gpu, Lane, Tensor};
use chimera_core::comm::{Comm, CommError, Host, Position, Tag};
use chimera_core::engine::Patience;
use chimera_core::fault::Fault;
use chimera_core::ids::Rank;
use rustc_hash::FxHashMap;

pub use library::Library;

use communicator::{Communicator, Way};
use library::UniqueId;
use order::{LEAD, Message, Order, aside, numbers, unreadable, words};
use watch::Watched;

/// Lines on which the transport talks to itself, beside those of the order.
const BYTES: u8 = 3;
const BYE: u8 = 4;
/// Nobody says anything on it: asked only whether a rank still lives.
const SILENCE: u8 = 5;

/// One rank's end. It is left by [`close`](Nccl::close), together with the other ranks.
pub struct Nccl<D: Driver, C: Comm<Host>> {
    control: C,
    watched: Arc<Watched<D::Lane>>,
    watching: Option<JoinHandle<()>>,
    patience: Patience,
    order: Order,
    /// By receiver: how many messages were announced.
    n_sent: Vec<u64>,
    /// What waits for its turn, by receiver and number.
    outbox: FxHashMap<(Rank, u64), (Tag, Tensor<D::Memory>)>,
    /// What has come and was not taken, by sender and number, with its bytes.
    inbox: FxHashMap<(Rank, u64), (D::Memory, usize)>,
    /// What was said of messages that have not come.
    headers: FxHashMap<(Rank, Tag), Header>,
    /// What this rank sent to itself.
    own: FxHashMap<Tag, Tensor<D::Memory>>,
    n_exchanges: u64,
}

/// What a message is.
struct Header {
    number: u64,
    element: Element,
    shape: Vec<usize>,
}

impl Header {
    fn write(&self) -> Host {
        let element = u64::from(self.element == Element::Bf16);
        let shape = self.shape.iter().map(|extent| *extent as u64);
        words(&[self.number, element].into_iter().chain(shape).collect::<Vec<_>>())
    }

    fn read(said: &Host) -> Result<Header, CommError> {
        let said = numbers(said)?;
        let [number, element, ref extents @ ..] = said[..] else { return Err(unreadable()) };
        let element = if element == 0 { Element::F32 } else { Element::Bf16 };
        let extents = extents.iter().map(|extent| usize::try_from(*extent));
        let shape = extents.collect::<Result<_, _>>().map_err(|_| unreadable())?;
        Ok(Header { number, element, shape })
    }
}

fn bytes_of(element: Element, shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(element.bytes(), |bytes, extent| bytes.checked_mul(*extent))
}

impl<D: Driver, C: Comm<Host>> Nccl<D, C> {
    /// Meets the other ranks of `control` within the patience of the first step, with the tensors of `gpu`;
    /// messages may then be under way for as long as the engine would wait. `is_over` is asked by another
    /// thread whether `control` has failed, so that NCCL does not wait for who is gone.
    ///
    /// # Errors
    /// If the ranks do not meet, or NCCL refuses them.
    pub fn start(
        library: Arc<Library>,
        gpu: &Gpu<D>,
        mut control: C,
        patience: Patience,
        is_over: impl Fn() -> bool + Send + 'static,
    ) -> Result<Self, CommError> {
        let deadline = Instant::now() + patience.first_step;
        let (me, n_ranks) = (control.rank(), control.n_ranks());
        let own =
            if me == LEAD { Communicator::unique_id(&library) } else { Ok(UniqueId([0; 128])) };
        let said = own.as_ref().map_or(&[][..], |id| &id.0);
        let all = control.exchange(said, deadline)?;
        own?;
        let id = all.first().and_then(|id| id.as_slice().try_into().ok()).map(UniqueId);
        let id = id.ok_or_else(|| CommError::Failed("rank 0 cannot start NCCL".into()))?;
        let lane = gpu.driver().lane()?;
        lane.enter()?;
        let communicator = Communicator::new(library, id, me.0, n_ranks, deadline)?;
        let watched = Arc::new(Watched::new(communicator, lane, patience.first_step));
        let watching = watched.watch(is_over);
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
            n_exchanges: 0,
        })
    }

    /// Leaves when all ranks do, until `deadline`. All that was sent has then been received.
    ///
    /// # Errors
    /// If a rank does not leave, or NCCL has failed.
    pub fn close(mut self, deadline: Instant) -> Result<(), CommError> {
        let said =
            self.until(deadline, LEAD, "its turn", |nccl| Ok(nccl.outbox.is_empty().then_some(())));
        said?;
        for to in self.others() {
            self.control.send(to, aside(BYE, 0), words(&[]))?;
        }
        for from in self.others() {
            self.until(deadline, from, "its good-bye", |nccl| {
                nccl.control.try_take(from, aside(BYE, 0))
            })?;
        }
        self.until(deadline, LEAD, "the device", |nccl| Ok(nccl.watched.is_idle().then_some(())))?;
        self.watched.communicator.close(deadline)
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> + use<D, C> {
        (0..self.control.n_ranks()).map(Rank)
    }

    fn others(&self) -> impl Iterator<Item = Rank> + use<D, C> {
        let me = self.control.rank();
        self.ranks().filter(move |rank| *rank != me)
    }

    /// Issues all messages whose turn it is; returns whether there were any.
    fn progress(&mut self) -> Result<bool, CommError> {
        self.watched.check()?;
        let mut moved = false;
        while let Some(message) = self.order.next(&mut self.control)? {
            self.issue(message)?;
            moved = true;
        }
        Ok(moved)
    }

    fn issue(&mut self, message: Message) -> Result<(), CommError> {
        let Message { from, to, number, bytes } = message;
        let watched = Arc::clone(&self.watched);
        let (lane, deadline) = (&watched.lane, Instant::now() + watched.patience());
        let is_over = || watched.check().is_err();
        let began = Instant::now();
        let (peer, what, taken) = if from == self.rank() {
            let (tag, tensor) = self.outbox.remove(&(to, number)).ok_or_else(unreadable)?;
            let (own, memory) = (tensor.bytes(), tensor.memory());
            let taken = lane.reading(memory, |mut at| {
                at.address = at.address.wrapping_byte_add(own.start);
                watched.communicator.message(Way::To, to.0, at, own.len(), deadline, &is_over)
            })?;
            (to, tag.what.to_string(), taken?)
        } else {
            let bytes = usize::try_from(bytes).map_err(|_| unreadable())?;
            let memory = lane.allocate(bytes)?;
            let taken = lane.writing(&memory, |at| {
                watched.communicator.message(Way::From, from.0, at, bytes, deadline, &is_over)
            })?;
            self.inbox.insert((from, number), (memory, bytes));
            (from, format!("message {number}"), taken?)
        };
        if !taken {
            // What ended it elsewhere is the cause.
            self.watched.check()?;
            self.living(peer)?;
            let error = CommError::Timeout { from: peer, what, waited: began.elapsed() };
            self.watched.fail(error.clone());
            return Err(error);
        }
        self.watched.add(peer, what, lane.mark()?);
        Ok(())
    }

    /// What `from` sent under `tag`, if it is on its way into this device's memory.
    fn look(&mut self, from: Rank, tag: Tag) -> Result<Option<Tensor<D::Memory>>, CommError> {
        if from == self.rank() {
            return Ok(self.own.remove(&tag));
        }
        if !self.headers.contains_key(&(from, tag)) {
            let Some(said) = self.control.try_take(from, tag)? else { return Ok(None) };
            self.headers.insert((from, tag), Header::read(&said)?);
        }
        let Header { number, element, ref shape } = self.headers[&(from, tag)];
        let Some(memory) = self.inbox.remove(&(from, number)) else { return Ok(None) };
        let is_whole = bytes_of(element, shape) == Some(memory.1);
        let shape = shape.clone();
        self.headers.remove(&(from, tag));
        if is_whole { Ok(Some(Tensor::of(memory.0, element, shape))) } else { Err(unreadable()) }
    }

    /// Waits until `look` finds something that `from` has to do.
    fn until<R>(
        &mut self,
        deadline: Instant,
        from: Rank,
        what: impl fmt::Display,
        mut look: impl FnMut(&mut Self) -> Result<Option<R>, CommError>,
    ) -> Result<R, CommError> {
        let began = Instant::now();
        for n in 0u32.. {
            let moved = self.progress()?;
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if moved {
                continue;
            }
            if n % 64 == 63 {
                self.living(from)?;
            }
            if Instant::now() >= deadline {
                break;
            }
            if n < 1000 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        Err(CommError::Timeout { from, what: what.to_string(), waited: began.elapsed() })
    }

    /// Lets messages be under way for as long as the engine waits now. What is left until its deadline tells
    /// which patience that is, but is none itself: of a deadline that many share, the last have nothing left.
    fn allow(&self, deadline: Instant) {
        let Patience { first_step, later } = self.patience;
        let left = deadline.saturating_duration_since(Instant::now());
        self.watched.allow(if left > later { first_step } else { later });
    }

    /// Whether the other transport still has a rank, and nobody has given up.
    fn living(&mut self, rank: Rank) -> Result<(), CommError> {
        match self.control.take(rank, aside(SILENCE, 0), Instant::now()) {
            Err(CommError::Timeout { .. }) | Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl<D: Driver, C: Comm<Host>> Comm<Tensor<D::Memory>> for Nccl<D, C> {
    fn rank(&self) -> Rank {
        self.control.rank()
    }

    fn n_ranks(&self) -> u32 {
        self.control.n_ranks()
    }

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

    fn post(&mut self, _: Rank, _: Tag) -> Result<(), CommError> {
        Ok(()) // every message is received when its turn comes
    }

    fn try_take(&mut self, from: Rank, tag: Tag) -> Result<Option<Tensor<D::Memory>>, CommError> {
        self.progress()?;
        self.look(from, tag)
    }

    fn take(
        &mut self,
        from: Rank,
        tag: Tag,
        deadline: Instant,
    ) -> Result<Tensor<D::Memory>, CommError> {
        self.allow(deadline);
        self.until(deadline, from, tag.what, |nccl| nccl.look(from, tag))
    }

    fn has_sum(&self, _: &[Rank]) -> bool {
        false
    }

    fn exchange(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>, CommError> {
        self.allow(deadline);
        let (me, tag) = (self.rank(), aside(BYTES, self.n_exchanges));
        self.n_exchanges += 1;
        for to in self.others() {
            self.control.send(to, tag, packed(bytes))?;
        }
        let mut all = Vec::with_capacity(self.n_ranks() as usize);
        for from in self.ranks() {
            if from == me {
                all.push(bytes.to_vec());
                continue;
            }
            let what = "its part of the agreement";
            let said = self.until(deadline, from, what, |n| n.control.try_take(from, tag))?;
            all.push(unpacked(&said)?);
        }
        Ok(all)
    }

    fn publish(&mut self, position: Position) {
        self.control.publish(position);
    }

    fn positions(&mut self, deadline: Instant) -> Vec<Option<Position>> {
        self.control.positions(deadline)
    }

    fn abort(&mut self, cause: &Fault) {
        self.control.abort(cause);
        self.watched.communicator.abort();
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

/// Bytes as a tensor: their number, then eight to a number.
fn packed(bytes: &[u8]) -> Host {
    let eight = |bytes: &[u8]| {
        let mut all = [0; 8];
        all[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(all)
    };
    let all: Vec<u64> =
        std::iter::once(bytes.len() as u64).chain(bytes.chunks(8).map(eight)).collect();
    words(&all)
}

fn unpacked(said: &Host) -> Result<Vec<u8>, CommError> {
    let said = numbers(said)?;
    let (len, rest) = said.split_first().ok_or_else(unreadable)?;
    let mut bytes: Vec<u8> = rest.iter().flat_map(|n| n.to_le_bytes()).collect();
    let len = usize::try_from(*len).ok().filter(|len| *len <= bytes.len());
    bytes.truncate(len.ok_or_else(unreadable)?);
    Ok(bytes)
}
