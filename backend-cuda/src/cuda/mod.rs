//! [`Driver`] on CUDA: a stream of a GPU, a memory pool, cuBLAS, and kernels compiled by NVRTC.
//!
//! All libraries are opened on first use. A program built with this starts on every machine, and
//! [`Cuda::new`] reports what a machine lacks.

#![allow(unsafe_code)] // the driver and its libraries are C

mod allocation;
#[cfg(feature = "candle-cuda")]
mod candle;
mod device;
mod plan;
mod product;
mod start;
mod timing;
mod toolkit;

use allocation::staging;
use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chimera_core::device::{Clock, DeviceError, Result};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

pub use cudarc::driver::CudaStream;

pub use allocation::lane::SideStream;
pub use allocation::memory::Memory;
pub use device::{Device, count, devices, libraries};
pub use timing::usage::Usage;
pub use toolkit::compile::compile;
pub use toolkit::compiled::{by_kernel, fault};

use super::order::follow;
use super::{Arg, Download, Driver, Format, Launch, Plus, Product};
use allocation::memory::{Ends, Held};
use allocation::pool::Pool;
use allocation::staging::Staging;
use allocation::stream::Stream;
use product::Blas;
use timing::clock::StreamClock;
use timing::timed::{Timed, What};

/// The most arguments of a kernel.
const MOST_ARGS: usize = 24;

/// A stream of a GPU. Clones are the same stream.
#[derive(Clone)]
pub struct Cuda(Arc<Inner>);

struct Inner {
    name: String,
    format: Format,
    // Before the stream, which it uses.
    blas: Mutex<Blas>,
    staging: Mutex<Staging>,
    stream: Stream,
    ends: Ends,
    functions: Arc<Functions>,
    pool: Arc<Pool>,
    held: Arc<Held>,
    counts: Arc<StreamCounts>,
    timed: Arc<Timed>,
}

/// Counts of a worker's activity so far.
#[derive(Default)]
struct StreamCounts {
    n_launches: AtomicU64,
    n_waits: AtomicU64,
    /// Launches that the host has waited for.
    n_done: AtomicU64,
}

/// Kernels by name.
struct Functions(HashMap<String, LoadedKernel>);

/// A kernel, and the most bytes of dynamic shared memory per block.
struct LoadedKernel {
    handle: sys::CUfunction,
    most_shared: usize,
}

// SAFETY: handles of functions are numbers to the driver, which is thread-safe.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

impl Drop for Inner {
    /// Waits for the device, so that nothing is freed that it still reads.
    fn drop(&mut self) {
        let done = self.stream.0.synchronize();
        let _ = done; // a device that failed has nothing left to wait for
    }
}

impl Cuda {
    /// Counts waits of the host for all of the stream's work.
    fn waited(&self, times: u64) {
        let StreamCounts { n_launches, n_waits, n_done } = &*self.0.counts;
        n_waits.fetch_add(times, Ordering::Relaxed);
        if times > 0 {
            n_done.store(n_launches.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Returns true if anything was launched since the last wait.
    fn is_busy(&self) -> bool {
        let StreamCounts { n_launches, n_done, .. } = &*self.0.counts;
        n_launches.load(Ordering::Relaxed) > n_done.load(Ordering::Relaxed)
    }

    fn named<T>(&self, op: &'static str, result: std::result::Result<T, DriverError>) -> Result<T> {
        result.map_err(|e| failed(&self.0.name, op, said(&e)))
    }

    /// Makes the context current in the calling thread. Order memory before: the marks of other
    /// GPUs' streams are made and dropped in their own contexts.
    fn bind(&self) -> Result<()> {
        self.named("binding", self.0.stream.0.context().bind_to_thread())
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

impl Driver for Cuda {
    type Memory = Memory;
    type Lane = SideStream;

    fn name(&self) -> String {
        self.0.name.clone()
    }

    fn format(&self) -> Format {
        self.0.format
    }

    fn most_shared(&self, kernel: &str) -> Option<usize> {
        Some(self.0.functions.0.get(kernel)?.most_shared)
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        self.bind()?;
        Memory::new(&self.0.pool, &self.0.stream, &self.0.ends, &self.0.held, bytes)
            .map_err(|e| out_of_memory(&self.0.name, bytes, &e))
    }

    fn fill(&self, memory: &Memory, byte: u8) -> Result<()> {
        if memory.bytes() == 0 {
            return Ok(());
        }
        memory.write(&self.0.stream)?;
        self.bind()?;
        let stream = self.0.stream.0.cu_stream();
        // SAFETY: the allocation has this size, and the stream orders the work after other uses.
        let done =
            unsafe { result::memset_d8_async(memory.address(), byte, memory.bytes(), stream) };
        self.named("fill", done)
    }

    fn write(&self, memory: &Memory, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= memory.bytes(), "more bytes than memory");
        if bytes.is_empty() {
            return Ok(());
        }
        memory.write(&self.0.stream)?;
        self.bind()?;
        let mut staging = lock(&self.0.staging);
        let waits = self.named("upload", staging.copy(&self.0.stream, memory.address(), bytes))?;
        self.0.counts.n_waits.fetch_add(waits, Ordering::Relaxed); // only for earlier uploads
        Ok(())
    }

    fn read(&self, memory: &Memory, start: usize, into: &mut [u8]) -> Result<()> {
        assert!(start + into.len() <= memory.bytes(), "more bytes than memory");
        if into.is_empty() {
            return Ok(());
        }
        memory.read(&self.0.stream)?;
        self.bind()?;
        self.waited(1);
        let address = memory.address() + start as u64;
        self.named("download", staging::bring_one(&self.0.stream, address, into))
    }

    fn read_all(&self, pieces: &mut [Download<'_, Memory>]) -> Result<()> {
        let mut staging = lock(&self.0.staging);
        for piece in pieces.iter() {
            let Download { memory, start, into } = piece;
            assert!(start + into.len() <= memory.bytes(), "more bytes than memory");
            memory.read(&self.0.stream)?;
        }
        self.bind()?;
        let stream = &self.0.stream;
        let mut copies =
            pieces.iter_mut().map(|p| (p.memory.address() + p.start as u64, &mut *p.into));
        let waits = self.named("download", staging.bring(stream, &mut copies))?;
        self.waited(waits);
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_, Memory>) -> Result<()> {
        assert!(launch.args.len() <= MOST_ARGS, "{} has too many arguments", launch.kernel);
        let mut values = [0u64; MOST_ARGS];
        let mut tables = Vec::new();
        for (value, arg) in values.iter_mut().zip(launch.args) {
            *value = self.argument(arg, &mut tables)?;
        }
        self.bind()?;
        let mut pointers = values.each_mut().map(|value| (&raw mut *value).cast::<c_void>());
        let function = match self.0.functions.0.get(launch.kernel) {
            Some(function) => function.handle,
            None => return Err(failed(&self.0.name, launch.kernel, "no such kernel".into())),
        };
        self.0.counts.n_launches.fetch_add(1, Ordering::Relaxed);
        self.timing(What::Kernel(launch.kernel), || {
            // SAFETY: the function belongs to the context. The arguments are those that it takes,
            // in order and with its sizes. Memory is alive and ordered after its other uses; see
            // the emulated tests.
            let started = unsafe {
                let [across, down] = launch.grid.map(|n| n as u32);
                result::launch_kernel(
                    function,
                    (across, down, 1),
                    (launch.block as u32, 1, 1),
                    launch.shared as u32,
                    self.0.stream.0.cu_stream(),
                    &mut pointers,
                )
            };
            self.named(launch.kernel, started)
        })
    }

    fn multiply(&self, product: &Product<'_, Memory>) -> Result<()> {
        product.a.place.memory.read(&self.0.stream)?;
        product.b.place.memory.read(&self.0.stream)?;
        if let Plus::Other(added) = &product.plus {
            added.memory.read(&self.0.stream)?;
        }
        if let Some(bias) = &product.bias {
            bias.memory.read(&self.0.stream)?;
        }
        product.into.memory.write(&self.0.stream)?;
        self.bind()?;
        self.0.counts.n_launches.fetch_add(1, Ordering::Relaxed);
        self.timing(What::Product([product.m, product.n, product.k]), || {
            let done = lock(&self.0.blas).multiply(product);
            done.map_err(|reason| failed(&self.0.name, "matrix product", reason))
        })
    }

    fn record_ready(&self, memory: &Memory) -> Result<()> {
        self.bind()?;
        memory.belong(None);
        memory.record_ready(&self.0.stream)
    }

    fn wait_ready(&self, memory: &Memory) -> Result<()> {
        memory.read(&self.0.stream)
    }

    fn peer_copy(&self, memory: &Memory, bytes: Range<usize>) -> Result<Option<Memory>> {
        if memory.ordinal() == self.0.stream.1 {
            memory.belong(Some(&self.0.held));
            return Ok(None);
        }
        let copy = self.allocate(bytes.len())?;
        memory.read(&self.0.stream)?;
        copy.write(&self.0.stream)?;
        self.bind()?;
        // SAFETY: the bytes lie inside of both allocations. The stream waits for the writer of one,
        // and keeps the other from being freed.
        let copied = unsafe {
            result::memcpy_peer_async(
                self.0.stream.0.context().cu_ctx(),
                copy.address(),
                memory.context(),
                memory.address() + bytes.start as u64,
                bytes.len(),
                self.0.stream.0.cu_stream(),
            )
        };
        self.named("copy between GPUs", copied)?;
        Ok(Some(copy))
    }

    fn beside(&self) -> Result<Cuda> {
        self.open_beside()
    }

    fn follow(&self, other: &Cuda) -> Result<()> {
        self.bind()?;
        follow(&self.0.stream, &other.0.stream)
    }

    fn clock(&self) -> Result<Option<Box<dyn Clock>>> {
        Ok(Some(Box::new(StreamClock::new(self.clone()))))
    }

    fn lane(&self) -> Result<SideStream> {
        self.bind()?;
        let Inner { name, ends, stream, held, pool, .. } = &*self.0;
        let side = self.named("new stream", Stream::new(ends.freeing.0.context(), stream.1))?;
        let (name, ends, pool) = (name.clone(), ends.clone(), Arc::clone(pool));
        Ok(SideStream { name, stream: side, ends, pool, held: Arc::clone(held) })
    }
}

impl Cuda {
    /// Orders an argument's memory, and returns the argument as a kernel takes it, little-endian.
    /// `tables` must be kept until the kernel has begun.
    fn argument(&self, arg: &Arg<'_, Memory>, tables: &mut Vec<Memory>) -> Result<u64> {
        Ok(match *arg {
            Arg::Read(memory, start) => {
                memory.read(&self.0.stream)?;
                memory.address() + start as u64
            }
            Arg::Write(memory, start) => {
                memory.write(&self.0.stream)?;
                memory.address() + start as u64
            }
            Arg::Null => 0,
            Arg::Int(x) => u64::from(x as u32),
            Arg::Long(x) => x as u64,
            Arg::Float(x) => u64::from(x.to_bits()),
            Arg::Double(x) => x.to_bits(),
            Arg::Table(args) => {
                let words = args.iter().map(|arg| self.argument(arg, tables));
                let bytes = words.map(|word| word.map(u64::to_le_bytes));
                let bytes = bytes.collect::<Result<Vec<_>>>()?.concat();
                let table = self.allocate(bytes.len())?;
                self.write(&table, &bytes)?;
                let address = table.address();
                tables.push(table);
                address
            }
        })
    }
}

/// Converts the error of a failed allocation.
fn out_of_memory(device: &str, bytes: usize, e: &DriverError) -> DeviceError {
    if e.0 != sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        return failed(device, "allocation", said(e));
    }
    DeviceError::OutOfMemory {
        device: device.into(),
        what: "a tensor".into(),
        asked_bytes: bytes.max(1) as u64, // an empty one has an address too
    }
}

fn failed(device: &str, op: &'static str, reason: String) -> DeviceError {
    DeviceError::Failed { device: device.into(), op, reason }
}

/// Returns the driver's own text.
fn said(e: &DriverError) -> String {
    let words = e.error_string().map(|words| words.to_string_lossy().into_owned());
    words.unwrap_or_else(|_| format!("{e:?}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
