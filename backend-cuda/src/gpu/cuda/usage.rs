//! What a stream has done, and what memory its GPU has.

use std::sync::atomic::Ordering;

use chimera_core::device::Result;
use cudarc::driver::{result, sys};

use super::Cuda;

/// What a stream has done, and the memory of its GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Layers and matrix products started.
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
}
