//! Threads that take turns stay on one core: who has a turn goes on at once, where the other has left off. On a core of its own
//! it would have to be woken first, which takes as long as many turns.

/// The core that this thread runs on, if that is known.
#[cfg(target_os = "linux")]
pub(super) fn current() -> Option<usize> {
    Some(rustix::thread::sched_getcpu())
}

/// Keeps this thread on a core. Where that cannot be, turns take longer.
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
