//! The machine that this process runs on.

use std::error::Error;
use std::fmt::Display;
use std::sync::OnceLock;

/// The processor's name and number of cores.
pub fn machine() -> String {
    let known = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = known.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let name = named.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    format!("{name}, {} core(s)", n_cores())
}

/// Cores that this process may use.
pub fn n_cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// The system refused to start a thread.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "cannot start {what}: {reason}; raise the limit of processes (ulimit -u) or of memory (ulimit -v)"
)]
pub struct NoThread {
    what: String,
    reason: String,
}

impl NoThread {
    /// Returns the error for what could not be started, and the system's reason.
    pub fn of(what: impl Into<String>, reason: &dyn Display) -> NoThread {
        NoThread { what: what.into(), reason: reason.to_string() }
    }
}

/// Starts the thread pool for work outside of a training, with one thread per core, unless it is
/// running.
///
/// # Errors
/// If the system refuses the threads. Without this check Rayon would panic where they are used.
pub fn start_threads() -> Result<(), NoThread> {
    static STARTED: OnceLock<Result<(), NoThread>> = OnceLock::new();
    if rayon::current_thread_index().is_some() {
        return Ok(()); // in a pool already
    }
    let start = || match rayon::ThreadPoolBuilder::new().build_global() {
        // An error without a cause means that the pool is already there.
        Err(error) if error.source().is_some() => {
            Err(NoThread::of("a thread for each core", &error))
        }
        _ => Ok(()),
    };
    STARTED.get_or_init(start).clone()
}

/// A pool of `n` threads.
///
/// # Errors
/// If the system refuses the threads.
pub fn thread_pool(n: usize) -> Result<rayon::ThreadPool, NoThread> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build();
    pool.map_err(|error| NoThread::of(format!("{n} thread(s)"), &error))
}
