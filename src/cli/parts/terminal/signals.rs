//! Handlers of SIGINT and SIGTERM.

use std::sync::{Mutex, PoisonError};

use anyhow::{Result, anyhow};

use crate::device::NoThread;

/// The exit code of a process that a signal ends, with nothing saved.
pub(crate) const STOPPED: i32 = 130;

/// The function that is called at a signal.
static HANDLER: Mutex<Option<Box<dyn FnMut() + Send>>> = Mutex::new(None);

/// Calls `new` at each SIGINT and SIGTERM from now on, in a thread of its own.
///
/// # Errors
/// If the system refuses the thread or the signal handlers.
pub(crate) fn on_signal(new: impl FnMut() + Send + 'static) -> Result<()> {
    let handler = || HANDLER.lock().unwrap_or_else(PoisonError::into_inner);
    if handler().replace(Box::new(new)).is_some() {
        return Ok(());
    }
    let call = move || handler().iter_mut().for_each(|call| call());
    ctrlc::set_handler(call).map_err(|error| match error {
        ctrlc::Error::System(error) if error.raw_os_error().is_some() => {
            NoThread::of("the thread that waits for signals", &error).into()
        }
        ctrlc::Error::System(error) => anyhow!("cannot wait for signals: {error}"),
        other => other.into(),
    })
}
