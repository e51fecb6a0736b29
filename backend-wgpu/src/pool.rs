//! Device memory, reused from tensor to tensor.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Buffer sizes are multiples of this.
const GRAIN: u64 = 256;
/// Number of sizes between two powers of two.
const SIZES: u64 = 8;

/// Free buffers, by size. A buffer is free as soon as its last tensor is dropped: commands that
/// still read it were recorded before those that will write to it, and the device keeps that order.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    free: Mutex<HashMap<u64, Vec<Free>>>,
    /// Number of submissions so far.
    submissions: AtomicU64,
}

/// A buffer that returns to its pool when it is dropped.
#[derive(Debug)]
pub(crate) struct Memory {
    buffer: wgpu::Buffer,
    pool: Arc<Pool>,
    /// The latest submission that may contain a use of it.
    used: u64,
}

#[derive(Debug)]
struct Free {
    buffer: wgpu::Buffer,
    used: u64,
}

impl Pool {
    /// Returns the buffer size that is allocated for `bytes`.
    pub(crate) fn size(bytes: u64) -> u64 {
        let step = (bytes.next_power_of_two() / (2 * SIZES)).max(GRAIN);
        bytes.max(1).next_multiple_of(step)
    }

    /// Takes a free buffer of exactly this [`size`](Pool::size).
    pub(crate) fn take(self: &Arc<Pool>, size: u64) -> Option<Memory> {
        let Free { buffer, used } = self.free().get_mut(&size)?.pop()?;
        Some(Memory { buffer, pool: Arc::clone(self), used })
    }

    /// Wraps a new buffer.
    pub(crate) fn own(self: &Arc<Pool>, buffer: wgpu::Buffer) -> Memory {
        Memory { buffer, pool: Arc::clone(self), used: 0 }
    }

    /// Returns all free buffers to the device.
    pub(crate) fn shrink(&self) {
        self.free().clear();
    }

    /// Counts a submission of all recorded commands.
    pub(crate) fn submitted(&self) {
        self.submissions.fetch_add(1, Ordering::AcqRel);
    }

    #[cfg(test)]
    pub(crate) fn n_submissions(&self) -> u64 {
        self.submissions.load(Ordering::Acquire)
    }

    fn free(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Vec<Free>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the submission that is being recorded.
    fn next_submission(&self) -> u64 {
        self.submissions.load(Ordering::Acquire) + 1
    }
}

impl Memory {
    pub(crate) fn buffer(&self) -> &wgpu::Buffer {
        &self.buffer
    }

    /// Returns true if recorded commands that are not submitted may still use it.
    pub(crate) fn is_awaited(&self) -> bool {
        self.used >= self.pool.next_submission()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let free = Free { buffer: self.buffer.clone(), used: self.pool.next_submission() };
        self.pool.free().entry(free.buffer.size()).or_default().push(free);
    }
}

#[cfg(test)]
mod tests {
    use super::Pool;

    #[test]
    fn sizes_waste_little() {
        assert_eq!([0, 1, 256, 257, 4096].map(Pool::size), [256, 256, 256, 512, 4096]);
        for bytes in (1..10_000_000u64).step_by(9973) {
            let size = Pool::size(bytes);
            assert!(size >= bytes && size.is_multiple_of(256), "{bytes}");
            assert!(size <= bytes + bytes / 8 + 256, "{bytes} takes {size}");
            assert_eq!(Pool::size(size), size);
        }
    }
}
