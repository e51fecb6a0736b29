//! The time of a stream's work, measured by events, and its names for profilers.

use std::fmt::Display;

use chimera_core::device::{Clock, KernelRun, Result};
use cudarc::driver::CudaEvent;
use cudarc::driver::result::DriverError;

use super::nvtx::Nvtx;
use super::timed::elapsed;
use crate::cuda::Cuda;

pub(crate) struct StreamClock {
    cuda: Cuda,
    marks: Vec<std::result::Result<CudaEvent, DriverError>>,
    /// The event from which ages were last counted.
    now: Option<CudaEvent>,
    profiler: Option<&'static Nvtx>,
}

impl StreamClock {
    pub(crate) fn new(cuda: Cuda) -> Self {
        Self { cuda, marks: Vec::new(), now: None, profiler: Nvtx::found() }
    }

    fn told(&mut self) -> std::result::Result<Vec<f64>, DriverError> {
        let marks = self.marks.drain(..).collect::<std::result::Result<Vec<_>, _>>()?;
        if self.cuda.is_busy() {
            self.cuda.waited(1);
        }
        // If the stream is idle, this event is complete at once, and so are all marks.
        let now = self.cuda.event()?;
        now.synchronize()?;
        let ages = marks.iter().map(|mark| elapsed(mark, &now)).collect();
        self.now = Some(now);
        ages
    }
}

impl Clock for StreamClock {
    fn mark(&mut self) {
        self.marks.push(self.cuda.event());
    }

    fn ages(&mut self) -> Result<Vec<f64>> {
        let told = self.told();
        self.cuda.named("clock", told)
    }

    fn can_time_kernels(&self) -> bool {
        true
    }

    fn time_kernels(&mut self, is_on: bool) {
        self.cuda.0.timed.switch(is_on);
    }

    fn kernels(&mut self) -> Result<Vec<KernelRun>> {
        let Some(now) = &self.now else { return Ok(Vec::new()) };
        self.cuda.named("times of launches", self.cuda.0.timed.take(now))
    }

    fn begin_range(&mut self, name: &dyn Display) {
        if let Some(profiler) = self.profiler {
            profiler.push(name);
        }
    }

    fn end_range(&mut self) {
        if let Some(profiler) = self.profiler {
            profiler.pop();
        }
    }
}
