//! Activity of a stream, and memory of its GPU.

use std::sync::atomic::Ordering;

use chimera_core::device::Result;
use cudarc::driver::result;

use crate::cuda::Cuda;

/// The activity of a stream, and the memory of its GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Layers and matrix products started.
    pub n_launches: u64,
    /// Times that the host waited for the device.
    pub n_waits: u64,
    /// Bytes in use by all streams of the GPU.
    pub used_bytes: u64,
    /// The most bytes that were in use.
    pub peak_bytes: u64,
    /// Bytes that the pool holds, in use or not. If they do not grow, nothing was allocated.
    pub reserved_bytes: u64,
}

impl Cuda {
    /// Returns the counts so far.
    ///
    /// # Errors
    /// If the driver does not return them.
    pub fn usage(&self) -> Result<Usage> {
        let counts = self.named("memory pool", self.0.pool.counts())?;
        Ok(Usage {
            n_launches: self.0.counts.n_launches.load(Ordering::Relaxed),
            n_waits: self.0.counts.n_waits.load(Ordering::Relaxed),
            used_bytes: counts.used,
            peak_bytes: counts.peak,
            reserved_bytes: counts.reserved,
        })
    }

    /// Returns the unused bytes of the GPU's memory, including unused ones of this program's pool.
    ///
    /// # Errors
    /// If the driver does not return them.
    pub fn free_bytes(&self) -> Result<u64> {
        self.bind()?;
        let (free, _) = self.named("memory", result::mem_get_info())?;
        let counts = self.named("memory pool", self.0.pool.counts())?;
        Ok(free as u64 + counts.reserved.saturating_sub(counts.used))
    }

    /// Returns the most bytes that tensors of this stream took, scratch memory included.
    pub fn held_peak(&self) -> u64 {
        self.0.held.peak()
    }

    /// Restarts [`Usage::peak_bytes`] and [`held_peak`](Self::held_peak).
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn reset_peak(&self) -> Result<()> {
        self.0.held.reset_peak();
        self.named("memory pool", self.0.pool.reset_peak())
    }
}
