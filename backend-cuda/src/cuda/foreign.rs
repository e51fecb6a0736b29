//! Memory that another library owns: used in place, in order with that library's own work.

use std::any::Any;
use std::sync::Arc;

use chimera_core::device::Result;
use cudarc::driver::CudaStream;

use super::memory::Memory;
use super::stream::Stream;
use super::{Cuda, failed};

impl Cuda {
    /// Memory of an owner, used in place. Work here comes after what the owner has put into `stream` so far; and when the
    /// memory is dropped, `stream` waits for every use of it, and then the owner is dropped. What the owner does to the
    /// memory meanwhile is not ordered.
    ///
    /// # Errors
    /// If the memory lies on another GPU, or the device fails.
    ///
    /// # Safety
    /// `address` is the first of so many bytes of the GPU of `stream`, which are there until `owner` is dropped and what is
    /// in `stream` then is done. Nobody writes to them while this is used, or reads them while this is written to.
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
