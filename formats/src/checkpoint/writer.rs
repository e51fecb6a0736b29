//! The thread that writes a checkpoint while training goes on.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Niceness of the thread (0 is normal, 19 the lowest priority).
#[cfg(target_os = "linux")]
const NICENESS: i32 = 15;

/// A write in progress on a thread of its own, or one that is done.
pub(super) enum WriterThread<T> {
    Running(JoinHandle<Option<T>>),
    Done(Option<T>),
}

impl<T> WriterThread<T> {
    pub(super) fn is_finished(&self) -> bool {
        match self {
            WriterThread::Running(thread) => thread.is_finished(),
            WriterThread::Done(_) => true,
        }
    }

    /// Waits for the result of the write; `None` if it panicked.
    pub(super) fn join(self) -> Option<T> {
        match self {
            WriterThread::Running(thread) => thread.join().ok().flatten(),
            WriterThread::Done(written) => written,
        }
    }
}

/// Writes on a thread that uses the time that the training leaves of the cores, and at least a
/// thirtieth of a core. A writer with a full share would hold up one rank, and that rank all
/// others. If no thread can be started, this one writes.
pub(super) fn begin_writer<T: Send + 'static>(
    write: impl FnOnce() -> T + Send + 'static,
) -> WriterThread<T> {
    begin_on(Builder::new(), write)
}

fn begin_on<T: Send + 'static>(
    builder: Builder,
    write: impl FnOnce() -> T + Send + 'static,
) -> WriterThread<T> {
    // A thread that fails to start drops its closure, so both threads hold the work.
    let work = Arc::new(Mutex::new(Some(write)));
    let of_thread = Arc::clone(&work);
    let started = builder.spawn(move || {
        // Elsewhere than on Linux the niceness applies to the whole process. Threads that are started here inherit it.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::nice(NICENESS); // without it the training is only slower
        taken(&of_thread).map(|write| write())
    });
    match started {
        Ok(thread) => WriterThread::Running(thread),
        Err(_) => WriterThread::Done(taken(&work).map(|write| write())),
    }
}

fn taken<W>(work: &Mutex<Option<W>>) -> Option<W> {
    work.lock().unwrap_or_else(PoisonError::into_inner).take()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_thread_the_caller_writes() {
        let me = || std::thread::current().id();
        let no_system_has = Builder::new().stack_size(1 << 60);
        let here = begin_on(no_system_has, me);
        assert!(here.is_finished());
        assert_eq!(here.join(), Some(me()));
        let beside = begin_writer(me).join();
        assert!(beside.is_some_and(|thread| thread != me()));
        assert_eq!(
            begin_writer(|| -> u32 { std::panic::resume_unwind(Box::new(())) }).join(),
            None
        );
    }
}
