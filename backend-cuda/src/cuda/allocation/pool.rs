//! Pools of GPU memory: stream-ordered or, if the driver has no such pools, kept blocks.
//!
//! All streams of a GPU share one pool, for as long as any of their memory lives. Then it returns
//! everything. The device's default pool is left alone: it belongs to the whole process, and others
//! may use it.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, Weak};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, sys};

use super::counts::Counts;
use super::kept::Kept;
use super::stream::Stream;
use crate::cuda::lock;

static OPEN: Mutex<Vec<Weak<Pool>>> = Mutex::new(Vec::new());

/// The memory of one GPU.
pub(crate) struct Pool {
    context: Arc<CudaContext>,
    ordinal: usize,
    source: Supply,
}

enum Supply {
    Ordered(sys::CUmemoryPool),
    Kept(Mutex<Kept>),
}

// SAFETY: the handle of a pool is a number to the driver, which is thread-safe.
unsafe impl Send for Pool {}
// SAFETY: the driver is thread-safe, and the kept blocks are in a mutex.
unsafe impl Sync for Pool {}

impl Pool {
    /// Returns the pool of a GPU, or makes one if the program has none there.
    pub(crate) fn of(context: &Arc<CudaContext>, ordinal: usize) -> Result<Arc<Self>, DriverError> {
        let mut open = lock(&OPEN);
        open.retain(|pool| pool.strong_count() > 0);
        let others: Vec<_> = open.iter().filter_map(Weak::upgrade).collect();
        if let Some(pool) = others.iter().find(|pool| pool.ordinal == ordinal) {
            return Ok(Arc::clone(pool));
        }
        let source = match ordered(context, ordinal)? {
            Some(pool) => Supply::Ordered(pool),
            None => Supply::Kept(Mutex::default()),
        };
        let pool = Arc::new(Self { context: Arc::clone(context), ordinal, source });
        for other in &others {
            pool.open_to(other);
            other.open_to(&pool);
        }
        open.push(Arc::downgrade(&pool));
        Ok(pool)
    }

    /// Allocates `bytes` for use by `stream`, whose context must be current.
    pub(crate) fn allocate(
        &self,
        stream: &Stream,
        bytes: usize,
    ) -> Result<sys::CUdeviceptr, DriverError> {
        let bytes = bytes.max(1);
        match &self.source {
            // SAFETY: pool and stream are alive, and the allocation is freed once, by `free`.
            Supply::Ordered(pool) => unsafe {
                result::mem_pool::alloc_async(*pool, bytes, stream.0.cu_stream())
            },
            Supply::Kept(kept) => lock(kept).allocate(stream, bytes),
        }
    }

    /// Frees an allocation after the work of `stream`, whose context must be current.
    ///
    /// # Safety
    /// Only work before that of `stream` uses the memory, and it is returned once.
    pub(crate) unsafe fn free(
        &self,
        address: sys::CUdeviceptr,
        bytes: usize,
        stream: &Stream,
    ) -> Result<(), DriverError> {
        match &self.source {
            // SAFETY: by the contract of this function.
            Supply::Ordered(_) => unsafe { result::free_async(address, stream.0.cu_stream()) },
            Supply::Kept(kept) => lock(kept).keep(address, bytes.max(1), stream),
        }
    }

    /// Leaves an allocation to another owner, who frees it through the driver.
    pub(crate) fn forget(&self, address: sys::CUdeviceptr) {
        match &self.source {
            Supply::Ordered(_) => {} // the driver knows whose pool it is
            Supply::Kept(kept) => lock(kept).forget(address),
        }
    }

    pub(crate) fn counts(&self) -> Result<Counts, DriverError> {
        use sys::CUmemPool_attribute_enum as Attribute;
        let pool = match &self.source {
            Supply::Ordered(pool) => *pool,
            Supply::Kept(kept) => return Ok(lock(kept).counts()),
        };
        let read = |attribute| {
            let mut value = 0u64;
            // SAFETY: the pool is alive, and these attributes are 64 bits.
            let got = unsafe {
                result::mem_pool::get_attribute(pool, attribute, (&raw mut value).cast())
            };
            got.map(|()| value)
        };
        Ok(Counts {
            used: read(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            peak: read(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
            reserved: read(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
        })
    }

    pub(crate) fn reset_peak(&self) -> Result<(), DriverError> {
        let high = sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
        match &self.source {
            // SAFETY: the pool is alive, and this attribute is 64 bits.
            Supply::Ordered(pool) => unsafe { set(*pool, high, &mut 0u64) },
            Supply::Kept(kept) => {
                lock(kept).reset_peak();
                Ok(())
            }
        }
    }

    /// Lets another GPU read and write this memory, if the machine can. If it cannot, or the driver
    /// refuses, copies between the two go through the host, which is slower but correct.
    fn open_to(&self, other: &Pool) {
        let Supply::Ordered(pool) = self.source else { return };
        let (mut can, device) = (0, other.context.cu_device());
        // SAFETY: it writes an int, and both devices are open.
        let asked = unsafe {
            sys::cuDeviceCanAccessPeer(&raw mut can, device, self.context.cu_device()).result()
        };
        if asked.is_ok() && can != 0 {
            let access = Access { location: Location::gpu(other.ordinal), flags: READ_AND_WRITE };
            // SAFETY: the pool is alive, and `access` is laid out as the driver's own description.
            let opened =
                unsafe { sys::cuMemPoolSetAccess(pool, (&raw const access).cast(), 1).result() };
            let _ = opened; // see above
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let bound = self.context.bind_to_thread();
        let given = bound.and_then(|()| match &self.source {
            // SAFETY: all allocations are freed, are about to be, or have an owner of their own,
            // who frees them. The driver keeps the parts of the pool that these need.
            Supply::Ordered(pool) => unsafe {
                result::mem_pool::trim_to(*pool, 0)?;
                result::mem_pool::destroy(*pool)
            },
            Supply::Kept(kept) => lock(kept).give_back(),
        });
        let _ = given; // the device failed: its memory is freed when the process ends
    }
}

/// Makes a pool on a GPU that keeps its memory, and that never lets a stream wait for another one
/// to get memory: NCCL's stream may stand still until this rank sends its next message. Returns
/// `None` if the driver has no pools, as on some virtual GPUs.
fn ordered(
    context: &CudaContext,
    ordinal: usize,
) -> Result<Option<sys::CUmemoryPool>, DriverError> {
    use sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED as SUPPORTED;
    use sys::CUmemPool_attribute_enum as Attribute;
    // SAFETY: the device is the context's. `properties` has the layout of the driver's own, and the
    // attributes have 64 and 32 bits.
    unsafe {
        if result::device::get_attribute(context.cu_device(), SUPPORTED)? == 0 {
            return Ok(None);
        }
        let properties = Properties {
            allocation: PINNED,
            handles: 0,
            location: Location::gpu(ordinal),
            security: ptr::null_mut(),
            rest: [0; 64],
        };
        let pool = match result::mem_pool::create((&raw const properties).cast()) {
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NOT_SUPPORTED => return Ok(None),
            created => created?,
        };
        set(pool, Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &mut u64::MAX.clone())?;
        set(pool, Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &mut 0i32)?;
        Ok(Some(pool))
    }
}

/// # Safety
/// The pool is alive, and the attribute has the type of `value`.
unsafe fn set<T>(
    pool: sys::CUmemoryPool,
    attribute: sys::CUmemPool_attribute_enum,
    value: &mut T,
) -> Result<(), DriverError> {
    // SAFETY: by the contract of this function.
    unsafe { result::mem_pool::set_attribute(pool, attribute, ptr::from_mut(value).cast()) }
}

// CUmemPoolProps and CUmemAccessDesc of `cuda.h`. Their layout is the same in all versions, but the
// names of their fields are not, and a program may be built with any version.

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: c_uint = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_AND_WRITE: c_uint = 3;

#[repr(C)]
struct Properties {
    allocation: c_uint,
    handles: c_uint,
    location: Location,
    security: *mut c_void,
    rest: [u8; 64],
}

#[repr(C)]
struct Access {
    location: Location,
    flags: c_uint,
}

#[repr(C)]
struct Location {
    kind: c_uint,
    number: c_int,
}

impl Location {
    fn gpu(ordinal: usize) -> Self {
        /// `CU_MEM_LOCATION_TYPE_DEVICE`.
        const DEVICE: c_uint = 1;
        Self { kind: DEVICE, number: ordinal as c_int }
    }
}

const _: () = assert!(size_of::<Properties>() == size_of::<sys::CUmemPoolProps>());
const _: () = assert!(size_of::<Access>() == size_of::<sys::CUmemAccessDesc>());
