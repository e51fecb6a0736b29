//! Times of kernels and products, from two events around every launch.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use chimera_core::device::{KernelRun, Result};
use cudarc::driver::CudaEvent;
use cudarc::driver::result::{DriverError, event};
use cudarc::driver::sys::CUevent_flags;

use crate::cuda::{Cuda, lock};

/// A kernel or a product.
#[derive(Clone, Copy)]
pub(crate) enum What {
    Kernel(&'static str),
    Product([usize; 3]),
}

/// Launches that are timed, if timing is on.
#[derive(Default)]
pub(crate) struct Timed {
    is_on: AtomicBool,
    spans: Mutex<Vec<(What, [CudaEvent; 2])>>,
}

impl Timed {
    /// Turns timing on or off; turning it on drops earlier launches.
    pub(crate) fn switch(&self, is_on: bool) {
        if is_on {
            lock(&self.spans).clear();
        }
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Takes the timed launches, relative to `now`: a later event that the stream has reached.
    pub(crate) fn take(&self, now: &CudaEvent) -> std::result::Result<Vec<KernelRun>, DriverError> {
        let spans = std::mem::take(&mut *lock(&self.spans));
        let run = |(what, [begin, end]): &(What, [CudaEvent; 2])| {
            let (start, seconds) = (-elapsed(begin, now)?, elapsed(begin, end)?);
            Ok(KernelRun { name: what.name(), start, seconds, flops: what.flops() })
        };
        spans.iter().map(run).collect()
    }
}

/// Returns the seconds between two events of a context, which record times and have happened.
pub(crate) fn elapsed(from: &CudaEvent, to: &CudaEvent) -> std::result::Result<f64, DriverError> {
    // SAFETY: both events are alive, and of one context. Other problems are returned as errors.
    let ms = unsafe { event::elapsed(from.cu_event(), to.cu_event()) }?;
    Ok(f64::from(ms) * 1e-3)
}

impl Cuda {
    /// Calls `launch`, which starts one kernel or product, and times it if timing is on.
    pub(crate) fn timing<R>(&self, what: What, launch: impl FnOnce() -> Result<R>) -> Result<R> {
        if !self.0.timed.is_on.load(Ordering::Relaxed) {
            return launch();
        }
        let begin = self.named("times of launches", self.event())?;
        let done = launch()?;
        let end = self.named("times of launches", self.event())?;
        lock(&self.0.timed.spans).push((what, [begin, end]));
        Ok(done)
    }

    /// Records an event with the time at which the stream reaches this point.
    pub(crate) fn event(&self) -> std::result::Result<CudaEvent, DriverError> {
        self.0.stream.0.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))
    }
}

impl What {
    fn name(self) -> String {
        match self {
            What::Kernel(name) => name.into(),
            What::Product([m, n, k]) => format!("product {m} x {k} x {n}"),
        }
    }

    fn flops(self) -> f64 {
        match self {
            What::Kernel(_) => 0.0,
            What::Product(sizes) => 2.0 * sizes.iter().map(|size| *size as f64).product::<f64>(),
        }
    }
}
