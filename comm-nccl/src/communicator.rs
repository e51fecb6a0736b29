//! One rank's end of NCCL, which the engine's thread uses and another thread may abort.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chimera_backend_cuda::At;
use chimera_core::comm::CommError;

use crate::library::{BYTE, Config, Handle, Library, Outcome, UniqueId};

/// Time between two checks of a call that is not done.
const MOMENT: Duration = Duration::from_micros(20);

pub(crate) struct Communicator {
    library: Arc<Library>,
    /// `None` once it is closed. The lock keeps an abort from freeing what a call uses.
    handle: Mutex<Option<Open>>,
}

#[derive(Clone, Copy)]
struct Open(Handle);

// SAFETY: NCCL's communicators may be used by any thread, one at a time.
unsafe impl Send for Open {}

/// A message and its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) peer: u32,
    /// Whether this rank sends it to the peer, rather than receiving it.
    pub(crate) sends: bool,
    pub(crate) at: At,
    pub(crate) bytes: usize,
}

impl Communicator {
    /// Returns the id that rank 0 passes to all ranks for [`new`](Self::new).
    pub(crate) fn unique_id(library: &Library) -> Result<UniqueId, CommError> {
        let mut id = UniqueId([0; UniqueId::BYTES]);
        // SAFETY: it writes an id.
        let outcome = unsafe { (library.call.get_unique_id)(&raw mut id) };
        library.check(outcome, std::ptr::null_mut()).map_err(CommError::Failed)?;
        Ok(id)
    }

    /// Meets the other ranks until `deadline`, on the calling thread's device.
    pub(crate) fn new(
        library: Arc<Library>,
        id: UniqueId,
        rank: u32,
        n_ranks: u32,
        deadline: Instant,
        why_over: &dyn Fn() -> Option<CommError>,
    ) -> Result<Communicator, CommError> {
        let mut handle: Handle = std::ptr::null_mut();
        let mut config = Config::non_blocking();
        // SAFETY: it writes a handle, and reads the configuration before it returns.
        let outcome = unsafe {
            (library.call.init)(&raw mut handle, n_ranks as i32, id, rank as i32, &raw mut config)
        };
        let communicator = Communicator { library, handle: Mutex::new(Some(Open(handle))) };
        communicator.in_progress(outcome, handle).map_err(CommError::Failed)?;
        if communicator.settle(deadline, &|| why_over().is_some())? {
            return Ok(communicator);
        }
        let late = || CommError::Failed("not all ranks met in NCCL in time".into());
        Err(why_over().unwrap_or_else(late))
    }

    /// Adds messages to their queue, none of which waits for another, and waits until NCCL has
    /// taken them. A peer that has not reached the same messages may hold that up. Returns `false`
    /// if they were not taken by `deadline`, or if `is_over`.
    pub(crate) fn messages(
        &self,
        messages: &[Message],
        deadline: Instant,
        is_over: &dyn Fn() -> bool,
    ) -> Result<bool, CommError> {
        {
            let handle = self.handle();
            let Some(Open(handle)) = *handle else { return Ok(false) };
            // SAFETY: begins a group, which this thread ends below.
            let outcome = unsafe { (self.library.call.group_start)() };
            self.library.check(outcome, handle).map_err(CommError::Failed)?;
            let added = messages.iter().map(|message| self.add(message, handle));
            let added = added.collect::<Vec<_>>().into_iter().collect::<Result<(), _>>();
            // SAFETY: the group has begun above, on this thread.
            let outcome = unsafe { (self.library.call.group_end)() };
            added.and(self.in_progress(outcome, handle)).map_err(CommError::Failed)?;
        }
        self.settle(deadline, is_over)
    }

    fn add(&self, message: &Message, handle: Handle) -> Result<(), String> {
        let (call, Message { peer, sends, at, bytes }) = (&self.library.call, *message);
        let peer = peer as i32;
        // SAFETY: the caller holds the lock under which the handle is alive; the memory has these bytes, and its
        // owner orders the queue's work.
        let outcome = unsafe {
            if sends {
                (call.send)(at.address, bytes, BYTE, peer, handle, at.queue)
            } else {
                (call.recv)(at.address, bytes, BYTE, peer, handle, at.queue)
            }
        };
        self.in_progress(outcome, handle)
    }

    /// Checks the result of a call, which may return before it is done.
    fn in_progress(&self, outcome: Outcome, handle: Handle) -> Result<(), String> {
        if outcome == Outcome::IN_PROGRESS {
            return Ok(());
        }
        self.library.check(outcome, handle)
    }

    /// Returns an asynchronous error of NCCL, such as a failed network.
    pub(crate) fn look(&self) -> Result<(), CommError> {
        self.state().map(drop)
    }

    /// Ends everything under way. NCCL's kernels that wait for a peer return.
    pub(crate) fn abort(&self) {
        if let Some(Open(handle)) = self.handle().take() {
            // SAFETY: the handle is alive, and taken, so nobody uses it again.
            let outcome = unsafe { (self.library.call.abort)(handle) };
            let _ = outcome; // nothing is left to do
        }
    }

    /// Leaves together with the others, once all work is done.
    pub(crate) fn close(&self, deadline: Instant) -> Result<(), CommError> {
        {
            let handle = self.handle();
            let Some(Open(handle)) = *handle else { return Ok(()) };
            // SAFETY: the handle is alive while the lock is held.
            let outcome = unsafe { (self.library.call.finalize)(handle) };
            self.in_progress(outcome, handle).map_err(CommError::Failed)?;
        }
        if !self.settle(deadline, &|| false)? {
            self.abort();
            return Err(CommError::Failed("not all ranks left NCCL in time".into()));
        }
        match self.handle().take() {
            // SAFETY: the handle is alive, and taken, so nobody uses it again.
            Some(Open(handle)) => unsafe {
                let outcome = (self.library.call.destroy)(handle);
                if outcome == Outcome::IN_PROGRESS {
                    return Ok(()); // it ends by itself
                }
                self.library.check(outcome, std::ptr::null_mut()).map_err(CommError::Failed)
            },
            None => Ok(()),
        }
    }

    /// Waits until the last call is done. Returns `false` if that takes too long, or if `is_over`.
    fn settle(&self, deadline: Instant, is_over: &dyn Fn() -> bool) -> Result<bool, CommError> {
        for n in 0.. {
            match self.state()? {
                State::Done => return Ok(true),
                State::Gone => return Ok(false),
                State::Busy if is_over() || Instant::now() >= deadline => return Ok(false),
                State::Busy if n < 100 => std::thread::yield_now(),
                State::Busy => std::thread::sleep(MOMENT),
            }
        }
        Ok(false)
    }

    fn state(&self) -> Result<State, CommError> {
        let handle = self.handle();
        let Some(Open(handle)) = *handle else { return Ok(State::Gone) };
        let mut state = Outcome::SUCCESS;
        // SAFETY: the handle is alive while the lock is held, and it writes an outcome.
        let outcome = unsafe { (self.library.call.async_error)(handle, &raw mut state) };
        self.library.check(outcome, handle).map_err(CommError::Failed)?;
        if state == Outcome::IN_PROGRESS {
            return Ok(State::Busy);
        }
        self.library.check(state, handle).map_err(CommError::Failed)?;
        Ok(State::Done)
    }

    fn handle(&self) -> MutexGuard<'_, Option<Open>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum State {
    Done,
    Busy,
    Gone,
}

impl Drop for Communicator {
    /// A communicator that was not closed belongs to a failed run.
    fn drop(&mut self) {
        self.abort();
    }
}
