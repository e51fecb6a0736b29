//! The time of a stream's work, told by events.

use chimera_core::device::{Clock, Result};
use cudarc::driver::CudaEvent;
use cudarc::driver::result::{DriverError, event};
use cudarc::driver::sys::CUevent_flags;

use super::Cuda;

/// A clock of one stream.
pub(super) struct StreamClock {
    cuda: Cuda,
    marks: Vec<std::result::Result<CudaEvent, DriverError>>,
}

impl StreamClock {
    pub(super) fn new(cuda: Cuda) -> Self {
        Self { cuda, marks: Vec::new() }
    }

    fn event(&self) -> std::result::Result<CudaEvent, DriverError> {
        self.cuda.0.stream.0.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))
    }

    fn told(&mut self) -> std::result::Result<Vec<f64>, DriverError> {
        let marks = self.marks.drain(..).collect::<std::result::Result<Vec<_>, _>>()?;
        if self.cuda.is_busy() {
            self.cuda.waited(1);
        }
        // Of a stream that has nothing left to do, this is there at once, and then all marks are.
        let now = self.event()?;
        now.synchronize()?;
        let age = |mark: &CudaEvent| {
            // SAFETY: both events are alive, of one context, keep the time, and are there.
            let ms = unsafe { event::elapsed(mark.cu_event(), now.cu_event()) }?;
            Ok(f64::from(ms) * 1e-3)
        };
        marks.iter().map(age).collect()
    }
}

impl Clock for StreamClock {
    fn mark(&mut self) {
        self.marks.push(self.event());
    }

    fn ages(&mut self) -> Result<Vec<f64>> {
        let told = self.told();
        self.cuda.named("clock", told)
    }
}
