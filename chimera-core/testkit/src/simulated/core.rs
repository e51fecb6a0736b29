//! Keeps threads that take turns on one core, where the next one continues at once. A thread on
//! another core would have to be woken first, which takes as long as many turns.

/// Returns the core that this thread runs on, if known.
#[cfg(target_os = "linux")]
pub(super) fn current() -> Option<usize> {
    Some(rustix::thread::sched_getcpu())
}

/// Pins this thread to a core. If that fails, turns only take longer.
#[cfg(target_os = "linux")]
pub(super) fn stay_on(core: Option<usize>) {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if let Some(core) = core.filter(|core| *core < CpuSet::MAX_CPU) {
        let mut cores = CpuSet::new();
        cores.set(core);
        let _ = sched_setaffinity(None, &cores);
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn current() -> Option<usize> {
    None
}

#[cfg(not(target_os = "linux"))]
pub(super) fn stay_on(_: Option<usize>) {}
