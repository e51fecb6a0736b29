//! Memory of a driver without stream-ordered pools. Its own release waits for the whole device, so blocks are kept when
//! they are given back, each with an event behind its last use, and are handed out again.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaEvent, CudaStream, sys};

use super::counts::Counts;
use super::stream::Stream;

/// Sizes are multiples of it, as are the driver's.
const GRAIN: usize = 512;

/// The blocks that nobody uses, and what all take.
#[derive(Default)]
pub(super) struct Kept {
    /// By size; of each the last that was given back comes last.
    free: BTreeMap<usize, Vec<Block>>,
    /// Sizes of those in use, which may be larger than what was asked for.
    sizes: BTreeMap<sys::CUdeviceptr, usize>,
    counts: Counts,
}

struct Block {
    address: sys::CUdeviceptr,
    /// The stream that gave it back, and what comes when it is done with it.
    last: Weak<CudaStream>,
    done: CudaEvent,
}

impl Block {
    /// Whether `stream` needs to wait for nobody to use it.
    fn is_ready_for(&self, stream: &Stream) -> bool {
        std::ptr::eq(self.last.as_ptr(), Arc::as_ptr(&stream.0))
            || self.done.try_is_complete().unwrap_or(false)
    }
}

impl Kept {
    /// A block that is kept, if one is ready and hardly larger; otherwise a new one. If there is no memory for that,
    /// what is kept and ready goes first.
    pub(super) fn allocate(
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

    /// A block of this size or up to an eighth more.
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

    /// Keeps a block that `stream` is the last to use.
    pub(super) fn keep(
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

    /// Counts a block no more: another owner gives it back to the driver.
    pub(super) fn forget(&mut self, address: sys::CUdeviceptr) {
        let size = self.sizes.remove(&address).unwrap_or(0) as u64;
        self.counts.used -= size;
        self.counts.reserved -= size;
    }

    /// Gives all that nobody uses back to the driver, as soon as the device is done with it.
    pub(super) fn give_back(&mut self) -> Result<(), DriverError> {
        for block in self.free.values().flatten() {
            block.done.synchronize()?;
        }
        self.release(|_| true)
    }

    /// Gives back the blocks that the device is done with.
    fn release(&mut self, is_done: impl Fn(&Block) -> bool) -> Result<(), DriverError> {
        for (size, blocks) in &mut self.free {
            let (done, busy) = std::mem::take(blocks).into_iter().partition(|block| is_done(block));
            *blocks = busy;
            let done: Vec<Block> = done;
            for block in done {
                self.counts.reserved -= *size as u64;
                // SAFETY: it was allocated by `allocate`, nobody uses it, and it is kept no more.
                unsafe { result::memory_free(block.address)? };
            }
        }
        self.free.retain(|_, blocks| !blocks.is_empty());
        Ok(())
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn reset_peak(&mut self) {
        self.counts.peak = self.counts.used;
    }
}
