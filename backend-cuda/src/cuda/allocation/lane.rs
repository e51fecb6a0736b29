//! A stream beside a worker's own, for a library that moves memory itself.

use std::sync::Arc;

use chimera_core::device::Result;
use cudarc::driver::CudaEvent;
use cudarc::driver::result::DriverError;

use super::memory::{Ends, Held, Memory};
use super::pool::Pool;
use super::stream::Stream;
use crate::cuda::{failed, out_of_memory, said};
use crate::{At, Lane};

/// A stream of a GPU for NCCL.
pub struct SideStream {
    pub(crate) name: String,
    pub(crate) stream: Stream,
    pub(crate) ends: Ends,
    pub(crate) pool: Arc<Pool>,
    pub(crate) held: Arc<Held>,
}

impl SideStream {
    fn named<T>(&self, op: &'static str, result: std::result::Result<T, DriverError>) -> Result<T> {
        result.map_err(|e| failed(&self.name, op, said(&e)))
    }

    fn at(&self, memory: &Memory) -> At {
        At { address: memory.address() as *mut _, queue: self.stream.0.cu_stream().cast() }
    }
}

impl Lane for SideStream {
    type Memory = Memory;
    type Mark = CudaEvent;

    fn enter(&self) -> Result<()> {
        self.named("binding", self.stream.0.context().bind_to_thread())
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        self.enter()?;
        Memory::new(&self.pool, &self.stream, &self.ends, &self.held, bytes)
            .map_err(|e| out_of_memory(&self.name, bytes, &e))
    }

    fn reading<R>(&self, memory: &Memory, act: impl FnOnce(At) -> R) -> Result<R> {
        memory.read(&self.stream)?;
        self.enter()?;
        Ok(act(self.at(memory)))
    }

    fn writing<R>(&self, memory: &Memory, act: impl FnOnce(At) -> R) -> Result<R> {
        memory.write(&self.stream)?;
        self.enter()?;
        let result = act(self.at(memory));
        memory.record_ready(&self.stream)?;
        Ok(result)
    }

    fn mark(&self) -> Result<CudaEvent> {
        self.named("record", self.stream.0.record_event(None))
    }

    fn is_done(&self, mark: &CudaEvent) -> Result<bool> {
        self.enter()?;
        self.named("query", mark.try_is_complete())
    }
}
