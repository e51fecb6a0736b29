//! How long each kernel and each product takes, by two events of every launch: what a profiler shows, where there is none.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use chimera_core::device::Result;
use cudarc::driver::CudaEvent;
use cudarc::driver::result::{DriverError, event};
use cudarc::driver::sys::CUevent_flags;

use super::{Cuda, lock};

/// All launches of a kernel, or all products of a size.
#[derive(Clone, Debug)]
pub struct LaunchTime {
    /// The kernel's name, or `product m x k x n`.
    pub what: String,
    /// How many there were.
    pub n: u64,
    /// Seconds of all of them.
    pub seconds: f64,
    /// Floating-point operations of all of them, of products.
    pub flops: f64,
}

/// What is launched.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum What {
    Kernel(&'static str),
    Product([usize; 3]),
}

/// Launches that are timed, if any are.
#[derive(Default)]
pub(super) struct Timed {
    is_on: AtomicBool,
    spans: Mutex<Vec<(What, [CudaEvent; 2])>>,
}

impl Cuda {
    /// Times every launch from here on, until [`launch_times`](Self::launch_times) are asked for. It takes some time of
    /// its own.
    pub fn time_launches(&self) {
        self.0.timed.is_on.store(true, Ordering::Relaxed);
    }

    /// What was launched since [`time_launches`](Self::time_launches), the longest first; waits for it.
    ///
    /// # Errors
    /// If the device fails.
    pub fn launch_times(&self) -> Result<Vec<LaunchTime>> {
        self.0.timed.is_on.store(false, Ordering::Relaxed);
        self.bind()?;
        let spans = std::mem::take(&mut *lock(&self.0.timed.spans));
        let summed = self.0.stream.0.synchronize().and_then(|()| sum(&spans));
        let mut all: Vec<_> = self.named("times of launches", summed)?.into_values().collect();
        all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Ok(all)
    }

    /// Does `launch`, which starts one thing.
    pub(super) fn timing<R>(&self, what: What, launch: impl FnOnce() -> Result<R>) -> Result<R> {
        if !self.0.timed.is_on.load(Ordering::Relaxed) {
            return launch();
        }
        let mark = || self.0.stream.0.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let begin = self.named("times of launches", mark())?;
        let done = launch()?;
        let end = self.named("times of launches", mark())?;
        lock(&self.0.timed.spans).push((what, [begin, end]));
        Ok(done)
    }
}

fn sum(
    spans: &[(What, [CudaEvent; 2])],
) -> std::result::Result<HashMap<What, LaunchTime>, DriverError> {
    let mut all = HashMap::new();
    for (what, [begin, end]) in spans {
        // SAFETY: both events are alive, of one context, keep the time, and are there.
        let ms = unsafe { event::elapsed(begin.cu_event(), end.cu_event()) }?;
        let (what, flops) = (*what, flops(*what));
        let none = || LaunchTime { what: name(what), n: 0, seconds: 0.0, flops: 0.0 };
        let time: &mut LaunchTime = all.entry(what).or_insert_with(none);
        time.n += 1;
        time.seconds += f64::from(ms) * 1e-3;
        time.flops += flops;
    }
    Ok(all)
}

fn name(what: What) -> String {
    match what {
        What::Kernel(name) => name.into(),
        What::Product([m, n, k]) => format!("product {m} x {k} x {n}"),
    }
}

fn flops(what: What) -> f64 {
    match what {
        What::Kernel(_) => 0.0,
        What::Product(sizes) => 2.0 * sizes.iter().map(|size| *size as f64).product::<f64>(),
    }
}
