//! Memory for drivers without stream-ordered pools. Freeing memory waits for the whole device
//! there, so returned blocks are kept, each with an event after its last use, and are reused.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaEvent, CudaStream, sys};

use super::counts::Counts;
use super::stream::Stream;

/// Sizes are multiples of this, as the driver's are.
const GRAIN: usize = 512;

/// The free blocks, and the sizes of all used ones.
#[derive(Default)]
pub(crate) struct Kept {
    /// Free blocks by size, the most recently returned last.
    free: BTreeMap<usize, Vec<Block>>,
    /// Sizes of the blocks in use, which may be larger than requested.
    sizes: BTreeMap<sys::CUdeviceptr, usize>,
    counts: Counts,
}

struct Block {
    address: sys::CUdeviceptr,
    /// The stream that returned the block, and the event after that stream's last use.
    last: Weak<CudaStream>,
    done: CudaEvent,
}

impl Block {
    /// Returns true if `stream` can use it without waiting.
    fn is_ready_for(&self, stream: &Stream) -> bool {
        std::ptr::eq(self.last.as_ptr(), Arc::as_ptr(&stream.0))
            || self.done.try_is_complete().unwrap_or(false)
    }
}

impl Kept {
    /// Returns a free block if one is ready and not much larger, otherwise a new one. If memory
    /// runs out, free blocks that are ready are released first.
    pub(crate) fn allocate(
        &mut self,
        stream: &Stream,
        bytes: usize,
    ) -> Result<sys::CUdeviceptr, DriverError> {
        let size = bytes.next_multiple_of(GRAIN);
        if let Some((size, address)) = self.take(stream, size) {
            return Ok(self.hand_out(size, address));
        }
        // SAFETY: the block is freed once, by `release`.
        let new = || unsafe { result::malloc_sync(size) };
        let address = match new() {
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                self.release(|block| block.done.try_is_complete().unwrap_or(false))?;
                new()?
            }
            other => other?,
        };
        self.counts.reserved += size as u64;
        Ok(self.hand_out(size, address))
    }

    /// Takes a block of this size, or up to an eighth larger.
    fn take(&mut self, stream: &Stream, size: usize) -> Option<(usize, sys::CUdeviceptr)> {
        for (size, blocks) in self.free.range_mut(size..=size + size / 8) {
            if let Some(at) = blocks.iter().rposition(|block| block.is_ready_for(stream)) {
                return Some((*size, blocks.remove(at).address));
            }
        }
        None
    }

    fn hand_out(&mut self, size: usize, address: sys::CUdeviceptr) -> sys::CUdeviceptr {
        self.sizes.insert(address, size);
        self.counts.used += size as u64;
        self.counts.peak = self.counts.peak.max(self.counts.used);
        address
    }

    /// Keeps a block whose last user is `stream`.
    pub(crate) fn keep(
        &mut self,
        address: sys::CUdeviceptr,
        bytes: usize,
        stream: &Stream,
    ) -> Result<(), DriverError> {
        let done = stream.0.record_event(None)?;
        let size = self.sizes.remove(&address).unwrap_or(bytes.next_multiple_of(GRAIN));
        self.counts.used -= size as u64;
        let block = Block { address, last: Arc::downgrade(&stream.0), done };
        self.free.entry(size).or_default().push(block);
        Ok(())
    }

    /// Stops counting a block, because another owner returns it to the driver.
    pub(crate) fn forget(&mut self, address: sys::CUdeviceptr) {
        let size = self.sizes.remove(&address).unwrap_or(0) as u64;
        self.counts.used -= size;
        self.counts.reserved -= size;
    }

    /// Returns all free blocks to the driver, once the device is done with them.
    pub(crate) fn give_back(&mut self) -> Result<(), DriverError> {
        for block in self.free.values().flatten() {
            block.done.synchronize()?;
        }
        self.release(|_| true)
    }

    /// Releases the free blocks that the device is done with.
    fn release(&mut self, is_done: impl Fn(&Block) -> bool) -> Result<(), DriverError> {
        for (size, blocks) in &mut self.free {
            let (done, busy) = std::mem::take(blocks).into_iter().partition(|block| is_done(block));
            *blocks = busy;
            let done: Vec<Block> = done;
            for block in done {
                self.counts.reserved -= *size as u64;
                // SAFETY: it was allocated by `allocate`, nobody uses it, and it is no longer kept.
                unsafe { result::memory_free(block.address)? };
            }
        }
        self.free.retain(|_, blocks| !blocks.is_empty());
        Ok(())
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn reset_peak(&mut self) {
        self.counts.peak = self.counts.used;
    }
}
