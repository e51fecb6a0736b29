//! Memory of a GPU's pool, or of another owner, and the order of its uses.

use std::any::Any;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use chimera_core::device::Result;
use cudarc::driver::result::DriverError;
use cudarc::driver::{CudaStream, sys};

use super::pool::Pool;
use super::stream::Stream;
use crate::cuda::lock;
use crate::order::Users;

/// An allocation, which is returned in the order of the streams that used it.
pub struct Memory {
    address: sys::CUdeviceptr,
    bytes: usize,
    /// The first stream that used it.
    home: Stream,
    ownership: Mutex<Ownership>,
    /// Counter of the worker that holds it; `None` while it is on its way.
    held: Mutex<Option<Arc<Held>>>,
    users: Mutex<Users<Stream>>,
}

/// The party that gets memory back, and the stream for that.
enum Ownership {
    /// The pool, on a stream that comes after every use.
    Pool { pool: Arc<Pool>, ends: Ends },
    /// The owner, which is dropped once `stream` comes after every use.
    Foreign { owner: ForeignOwner, stream: Stream },
}

/// The owner of memory outside of a pool.
pub(crate) type ForeignOwner = Box<dyn Any + Send + Sync>;

/// The streams of a worker that return memory.
#[derive(Clone)]
pub(crate) struct Ends {
    /// The worker's own stream, if all uses of the memory come before it.
    pub(crate) own: Stream,
    /// A stream that waits for others, so that compute does not.
    pub(crate) freeing: Stream,
}

/// Bytes of one worker's tensors, now and at most.
#[derive(Default)]
pub(crate) struct Held {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Held {
    fn add(&self, bytes: usize) {
        let now = self.now.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    pub(crate) fn reset_peak(&self) {
        self.peak.store(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Memory {
    /// Allocates `bytes` of `pool` for `home`. If memory runs out, retries when all work is done.
    pub(crate) fn new(
        pool: &Arc<Pool>,
        home: &Stream,
        ends: &Ends,
        held: &Arc<Held>,
        bytes: usize,
    ) -> std::result::Result<Self, DriverError> {
        let address = match pool.allocate(home, bytes) {
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                home.0.context().synchronize()?;
                pool.allocate(home, bytes)?
            }
            other => other?,
        };
        let ownership = Ownership::Pool { pool: Arc::clone(pool), ends: ends.clone() };
        let memory = Self {
            address,
            bytes,
            home: home.clone(),
            ownership: Mutex::new(ownership),
            held: Mutex::default(),
            users: Mutex::new(Users::new(home)),
        };
        memory.belong(Some(held));
        Ok(memory)
    }

    /// Wraps memory of an owner, in its state after the work in `stream` so far.
    ///
    /// # Safety
    /// The `bytes` at `address` exist until `owner` is dropped and the work in `stream` by then is
    /// done.
    pub(crate) unsafe fn of_owner(
        address: sys::CUdeviceptr,
        bytes: usize,
        stream: Stream,
        owner: ForeignOwner,
    ) -> Result<Self> {
        let mut users = Users::new(&stream);
        users.record_ready(&stream)?;
        Ok(Self {
            address,
            bytes,
            home: stream.clone(),
            ownership: Mutex::new(Ownership::Foreign { owner, stream }),
            held: Mutex::default(),
            users: Mutex::new(users),
        })
    }

    /// Returns the memory's owner, whose work from here on comes after all uses here; `None` if the
    /// owner has another type. Memory of this backend first goes to the owner that `own` makes from
    /// its address and size, together with the owner's stream.
    ///
    /// # Errors
    /// If `own` or the device fails.
    ///
    /// # Safety
    /// The owner that `own` makes returns the memory to the driver when it is dropped, after its
    /// stream's work by then.
    pub unsafe fn owned_by<T: Clone + Send + Sync + 'static>(
        &self,
        own: impl FnOnce(u64, usize) -> Result<(T, Arc<CudaStream>)>,
    ) -> Result<Option<T>> {
        let mut ownership = lock(&self.ownership);
        if let Ownership::Pool { pool, .. } = &*ownership {
            let pool = Arc::clone(pool);
            let (owner, stream) = own(self.address, self.bytes)?;
            pool.forget(self.address);
            let stream = Stream::of(stream, self.ordinal());
            *ownership = Ownership::Foreign { owner: Box::new(owner), stream };
        }
        let Ownership::Foreign { owner, stream } = &*ownership else { return Ok(None) };
        let Some(owner) = owner.downcast_ref::<T>() else { return Ok(None) };
        lock(&self.users).read(stream)?;
        Ok(Some(owner.clone()))
    }

    /// Counts the memory as a worker's from now on, or as nobody's.
    pub(crate) fn belong(&self, to: Option<&Arc<Held>>) {
        let mut held = lock(&self.held);
        if let Some(before) = held.take() {
            before.now.fetch_sub(self.bytes as u64, Ordering::Relaxed);
        }
        *held = to.cloned();
        if let Some(held) = &*held {
            held.add(self.bytes);
        }
    }

    /// Returns its address in the GPU's memory.
    pub fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn ordinal(&self) -> usize {
        self.home.1
    }

    pub(crate) fn context(&self) -> sys::CUcontext {
        self.home.0.context().cu_ctx()
    }

    /// Orders a read by `stream`. Call it before.
    pub(crate) fn read(&self, stream: &Stream) -> Result<()> {
        lock(&self.users).read(stream)
    }

    /// Orders a write by `stream`. Call it before.
    pub(crate) fn write(&self, stream: &Stream) -> Result<()> {
        lock(&self.users).write(stream)
    }

    /// Marks what `stream` wrote as ready for others. Call it after.
    pub(crate) fn record_ready(&self, stream: &Stream) -> Result<()> {
        lock(&self.users).record_ready(stream)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.belong(None);
        let mut users = lock(&self.users);
        match &mut *lock(&self.ownership) {
            Ownership::Pool { pool, ends: Ends { own, freeing } } => {
                let behind = [&self.home, own].into_iter().find(|stream| users.is_only(stream));
                let stream = match behind {
                    Some(stream) => stream,
                    None if users.all_precede(freeing).is_ok() => freeing,
                    None => return, // the device failed: its memory is freed when the process ends
                };
                let bound = stream.0.context().bind_to_thread();
                // SAFETY: freed once, and the stream comes after every use.
                let freed =
                    bound.and_then(|()| unsafe { pool.free(self.address, self.bytes, stream) });
                let _ = freed; // as above
            }
            Ownership::Foreign { owner, stream } => {
                let owner = mem::replace(owner, Box::new(()));
                let bound = stream.0.context().bind_to_thread(); // in which the owner is dropped
                if bound.is_err() || users.all_precede(stream).is_err() {
                    mem::forget(owner); // as above
                }
            }
        }
    }
}
