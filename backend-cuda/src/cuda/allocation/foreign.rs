//! Memory of another library, used in place and in order with that library's own work.

use std::any::Any;
use std::sync::Arc;

use chimera_core::device::Result;
use cudarc::driver::CudaStream;

use super::memory::Memory;
use super::stream::Stream;
use crate::cuda::{Cuda, failed};

impl Cuda {
    /// Uses memory of an owner in place. Work here comes after the owner's work in `stream` so far.
    /// When the memory is dropped, `stream` waits for every use of it, and then the owner is
    /// dropped. The owner's accesses to the memory meanwhile are not ordered.
    ///
    /// # Errors
    /// If the memory lies on another GPU, or the device fails.
    ///
    /// # Safety
    /// `address` is the first of `bytes` bytes on the GPU of `stream`. They exist until `owner` is
    /// dropped and the work in `stream` by then is done. Nobody writes to them while they are used
    /// here, or reads them while they are written here.
    pub unsafe fn foreign_memory(
        &self,
        address: u64,
        bytes: usize,
        stream: &Arc<CudaStream>,
        owner: impl Any + Send + Sync,
    ) -> Result<Memory> {
        let ordinal = stream.context().ordinal();
        if ordinal != self.0.stream.1 {
            let reason = format!("it lies on cuda:{ordinal}");
            return Err(failed(&self.0.name, "memory of another owner", reason));
        }
        let stream = Stream::of(Arc::clone(stream), ordinal);
        // SAFETY: by the contract of this function.
        let memory = unsafe { Memory::of_owner(address, bytes, stream, Box::new(owner))? };
        memory.belong(Some(&self.0.held));
        Ok(memory)
    }
}
