//! [`Driver`] on CUDA: one stream of one GPU, memory of the driver's stream-ordered pool, cuBLAS, and kernels
//! compiled by NVRTC.
//!
//! All libraries are opened when they are first asked for. A program built with this starts everywhere, and
//! [`Cuda::new`] says what a machine lacks.

mod clock;
mod compile;
mod device;
mod lane;
mod memory;
mod product;
mod staging;

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chimera_core::kernels::{Clock, DeviceError, Result};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, sys};

pub use compile::compile;
pub use device::{Device, count, devices, libraries};
pub use lane::SideStream;
pub use memory::Memory;

use super::{Arg, Driver, Element, Launch, Piece, Product, kernels, source};
use clock::StreamClock;
use memory::{Held, Stream};
use product::Blas;
use staging::Staging;

/// The most arguments that a kernel has.
const MOST_ARGS: usize = 24;

/// A stream of a GPU. Clones are the same stream.
#[derive(Clone)]
pub struct Cuda(Arc<Inner>);

struct Inner {
    name: String,
    // Before the stream, which it uses.
    blas: Mutex<Blas>,
    staging: Mutex<Staging>,
    stream: Stream,
    /// Where memory is given back that others have used: it waits for them, and compute does not.
    freeing: Stream,
    functions: HashMap<String, sys::CUfunction>,
    pool: sys::CUmemoryPool,
    held: Arc<Held>,
    n_launches: AtomicU64,
    n_waits: AtomicU64,
    /// Launches that the host has waited for.
    n_done: AtomicU64,
}

// SAFETY: handles of functions and pools are numbers to the driver, which is thread-safe; what is changed
// through them is behind locks.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    /// Nothing is given back that the device still reads.
    fn drop(&mut self) {
        let done = self.stream.0.synchronize();
        let _ = done; // a device that failed has nothing left to wait for
    }
}

/// What a stream has done, and the memory of its GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Kernels and matrix products started.
    pub n_launches: u64,
    /// Times that the host waited for the device.
    pub n_waits: u64,
    /// Bytes in use by all streams of the GPU.
    pub used_bytes: u64,
    /// The most there were.
    pub peak_bytes: u64,
    /// Bytes that the pool holds, in use or not: if they do not grow, nothing was allocated.
    pub reserved_bytes: u64,
}

impl Cuda {
    /// A stream of its own on GPU number `ordinal`, with the kernels for such activations.
    ///
    /// # Errors
    /// If the machine lacks the driver, the GPU, cuBLAS or NVRTC.
    pub fn new(ordinal: usize, activations: Element) -> Result<Self> {
        let n = count()?;
        let at = format!("cuda:{ordinal}");
        let on_device = |op: &'static str| {
            let at = at.clone();
            move |e: DriverError| failed(&at, op, said(&e))
        };
        if ordinal >= n {
            let reason = format!("this machine has {n} GPU(s); they are numbered from 0");
            return Err(failed(&at, "start", reason));
        }
        let context = CudaContext::new(ordinal).map_err(on_device("start"))?;
        let title = context.name().map_err(on_device("start"))?;
        let (major, minor) = context.compute_capability().map_err(on_device("start"))?;
        let name = format!("{at} ({title}, sm_{major}{minor})");
        let image = compile::cached(&format!("sm_{major}{minor}"), activations)
            .map_err(|reason| failed(&name, "compilation of kernels", reason))?;
        let streams = || Ok([context.new_stream()?, context.new_stream()?]);
        let [stream, freeing] =
            streams().map_err(on_device("new stream"))?.map(|stream| Stream(stream, ordinal));
        let functions =
            load(&context, &image, activations).map_err(on_device("loading of kernels"))?;
        let blas = Blas::new(&stream).map_err(|reason| failed(&name, "start of cuBLAS", reason))?;
        let staging = Staging::new(&stream).map_err(on_device("pinned memory"))?;
        let pool = pool(&context).map_err(on_device("memory pool"))?;
        Ok(Self(Arc::new(Inner {
            name,
            stream,
            freeing,
            functions,
            blas: Mutex::new(blas),
            staging: Mutex::new(staging),
            pool,
            held: Arc::default(),
            n_launches: AtomicU64::new(0),
            n_waits: AtomicU64::new(0),
            n_done: AtomicU64::new(0),
        })))
    }

    /// What has been done so far.
    ///
    /// # Errors
    /// If the driver does not say.
    pub fn usage(&self) -> Result<Usage> {
        use sys::CUmemPool_attribute_enum as Attribute;
        let read = |attribute| {
            let mut value = 0u64;
            // SAFETY: the pool is the device's own, and these attributes are 64 bits.
            let got = unsafe {
                result::mem_pool::get_attribute(self.0.pool, attribute, (&raw mut value).cast())
            };
            self.named("memory pool", got).map(|()| value)
        };
        Ok(Usage {
            n_launches: self.0.n_launches.load(Ordering::Relaxed),
            n_waits: self.0.n_waits.load(Ordering::Relaxed),
            used_bytes: read(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            peak_bytes: read(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
            reserved_bytes: read(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
        })
    }

    /// Bytes of the GPU's memory that nobody uses.
    ///
    /// # Errors
    /// If the driver does not say.
    pub fn free_bytes(&self) -> Result<u64> {
        self.bind()?;
        self.named("memory", result::mem_get_info()).map(|(free, _)| free as u64)
    }

    /// The most bytes that tensors of this stream took, scratch memory included.
    pub fn held_peak(&self) -> u64 {
        self.0.held.peak()
    }

    /// Lets [`Usage::peak_bytes`] and [`held_peak`](Self::held_peak) begin anew.
    ///
    /// # Errors
    /// If the driver does not do so.
    pub fn reset_peak(&self) -> Result<()> {
        self.0.held.reset_peak();
        let mut zero = 0u64;
        let high = sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
        // SAFETY: the pool is the device's own, and this attribute is 64 bits.
        let set =
            unsafe { result::mem_pool::set_attribute(self.0.pool, high, (&raw mut zero).cast()) };
        self.named("memory pool", set)
    }

    /// Counts times that the host waited for all that the stream has to do.
    fn waited(&self, times: u64) {
        self.0.n_waits.fetch_add(times, Ordering::Relaxed);
        if times > 0 {
            self.0.n_done.store(self.0.n_launches.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Whether anything was started since.
    fn is_busy(&self) -> bool {
        self.0.n_launches.load(Ordering::Relaxed) > self.0.n_done.load(Ordering::Relaxed)
    }

    fn named<T>(&self, op: &'static str, result: std::result::Result<T, DriverError>) -> Result<T> {
        result.map_err(|e| failed(&self.0.name, op, said(&e)))
    }

    /// The context must be current in whatever thread calls. Memory is ordered before: the marks of streams of
    /// other GPUs are made, and dropped, in contexts of theirs.
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

    fn device(&self) -> String {
        self.0.name.clone()
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        self.bind()?;
        Memory::new(&self.0.stream, &self.0.freeing, &self.0.held, bytes)
            .map_err(|e| out_of_memory(&self.0.name, bytes, &e))
    }

    fn fill(&self, memory: &Memory, byte: u8) -> Result<()> {
        if memory.bytes() == 0 {
            return Ok(());
        }
        memory.write(&self.0.stream)?;
        self.bind()?;
        let stream = self.0.stream.0.cu_stream();
        // SAFETY: the allocation is of this size, and the stream orders the work behind other uses.
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
        self.0.n_waits.fetch_add(waits, Ordering::Relaxed); // for earlier uploads alone
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

    fn read_all(&self, pieces: &mut [Piece<'_, Memory>]) -> Result<()> {
        let mut staging = lock(&self.0.staging);
        for piece in pieces.iter() {
            let Piece { memory, start, into } = piece;
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
        let function = match self.0.functions.get(launch.kernel) {
            Some(function) => *function,
            None => return Err(failed(&self.0.name, launch.kernel, "no such kernel".into())),
        };
        self.0.n_launches.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the function belongs to the context, arguments are those that it takes, in order and of its
        // sizes, and memory is alive and ordered behind its other uses; see the emulated tests.
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
    }

    fn multiply(&self, product: &Product<'_, Memory>) -> Result<()> {
        product.a.place.memory.read(&self.0.stream)?;
        product.b.place.memory.read(&self.0.stream)?;
        product.into.memory.write(&self.0.stream)?;
        self.bind()?;
        self.0.n_launches.fetch_add(1, Ordering::Relaxed);
        let done = lock(&self.0.blas).multiply(product);
        done.map_err(|reason| failed(&self.0.name, "matrix product", reason))
    }

    fn publish(&self, memory: &Memory) -> Result<()> {
        self.bind()?;
        memory.belong(None);
        memory.publish(&self.0.stream)
    }

    fn wait_for(&self, memory: &Memory) -> Result<()> {
        memory.read(&self.0.stream)
    }

    fn adopt(&self, memory: &Memory, bytes: Range<usize>) -> Result<Option<Memory>> {
        if memory.ordinal() == self.0.stream.1 {
            memory.belong(Some(&self.0.held));
            return Ok(None);
        }
        let copy = self.allocate(bytes.len())?;
        memory.read(&self.0.stream)?;
        copy.write(&self.0.stream)?;
        self.bind()?;
        // SAFETY: the bytes lie inside of both allocations; the stream waits for who wrote the one and keeps the
        // other from being given back.
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

    fn clock(&self) -> Result<Option<Box<dyn Clock>>> {
        Ok(Some(Box::new(StreamClock::new(self.clone()))))
    }

    fn lane(&self) -> Result<SideStream> {
        self.bind()?;
        let Inner { name, freeing, stream, held, .. } = &*self.0;
        let side = self.named("new stream", stream.0.context().new_stream())?;
        let (name, freeing, held) = (name.clone(), freeing.clone(), Arc::clone(held));
        Ok(SideStream { name, stream: Stream(side, stream.1), freeing, held })
    }
}

impl Cuda {
    /// An argument as a kernel takes it, little-endian, after memory was ordered. `tables` are to be kept until it
    /// has begun.
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

/// The kernels of an image, by name, each with as much shared memory as a block can have. The image stays
/// loaded for as long as the process lives.
fn load(
    context: &CudaContext,
    image: &[u8],
    activations: Element,
) -> std::result::Result<HashMap<String, sys::CUfunction>, DriverError> {
    use sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN as MOST;
    use sys::CUfunction_attribute_enum as Attribute;
    // SAFETY: the image is a whole one of NVRTC, and the context is current.
    unsafe {
        let module = result::module::load_data(image.as_ptr().cast())?;
        let most = result::device::get_attribute(context.cu_device(), MOST)?;
        let function = |name: &str| {
            let terminated = CString::new(name).unwrap_or_default();
            let function = result::module::get_function(module, terminated)?;
            let own = Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
            let own = result::function::get_function_attribute(function, own)?;
            let dynamic = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            result::function::set_function_attribute(function, dynamic, most - own)?;
            Ok((name.to_string(), function))
        };
        kernels(&source(activations)).map(function).collect()
    }
}

/// The device's pool, which from now on keeps what it has, and lets no stream wait for another one to get
/// memory: NCCL's may stand still until this rank sends what comes next.
fn pool(context: &CudaContext) -> std::result::Result<sys::CUmemoryPool, DriverError> {
    use sys::CUmemPool_attribute_enum as Attribute;
    let (mut keep, mut never) = (u64::MAX, 0i32);
    // SAFETY: the device is the context's, and the attributes are of 64 and 32 bits.
    unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device())?;
        let threshold = Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        result::mem_pool::set_attribute(pool, threshold, (&raw mut keep).cast())?;
        let waits = Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
        result::mem_pool::set_attribute(pool, waits, (&raw mut never).cast())?;
        Ok(pool)
    }
}

/// What a refused allocation is.
fn out_of_memory(device: &str, bytes: usize, e: &DriverError) -> DeviceError {
    if e.0 != sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        return failed(device, "allocation", said(e));
    }
    DeviceError::OutOfMemory {
        device: device.into(),
        what: "a tensor".into(),
        asked_bytes: bytes as u64,
    }
}

fn failed(device: &str, op: &'static str, reason: String) -> DeviceError {
    DeviceError::Failed { device: device.into(), op, reason }
}

/// The driver's own words.
fn said(e: &DriverError) -> String {
    let words = e.error_string().map(|words| words.to_string_lossy().into_owned());
    words.unwrap_or_else(|_| format!("{e:?}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
