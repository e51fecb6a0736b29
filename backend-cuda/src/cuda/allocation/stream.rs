//! Streams of a GPU, each with the stream that it follows.

use std::sync::Arc;

use chimera_core::device::{DeviceError, Result};
use cudarc::driver::result::DriverError;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};

use crate::cuda::said;
use crate::order::{Line, Position};

/// A stream, the number of its GPU, and its position.
#[derive(Clone)]
pub(crate) struct Stream(pub(crate) Arc<CudaStream>, pub(crate) usize, Arc<Position>);

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Line for Stream {
    type Event = CudaEvent;

    fn record(&self) -> Result<CudaEvent> {
        self.0.record_event(None).map_err(|e| self.failed("record", &e))
    }

    fn wait(&self, event: &CudaEvent) -> Result<()> {
        self.0.wait(event).map_err(|e| self.failed("wait", &e))
    }

    fn position(&self) -> &Position {
        &self.2
    }
}

impl Stream {
    /// Wraps a stream of the GPU of this number.
    pub(crate) fn of(stream: Arc<CudaStream>, ordinal: usize) -> Stream {
        Stream(stream, ordinal, Arc::new(Position::new()))
    }

    pub(crate) fn new(
        context: &Arc<CudaContext>,
        ordinal: usize,
    ) -> std::result::Result<Stream, DriverError> {
        Ok(Stream::of(context.new_stream()?, ordinal))
    }

    fn failed(&self, op: &'static str, e: &DriverError) -> DeviceError {
        crate::cuda::failed(&format!("cuda:{}", self.1), op, said(e))
    }
}
