//! Handlers of SIGINT and SIGTERM.

use anyhow::{Result, anyhow};

use crate::device::NoThread;

/// Calls `handler` at each SIGINT and SIGTERM, in a thread of its own.
///
/// # Errors
/// If the system refuses the thread or the signal handlers.
pub(crate) fn on_signal(handler: impl FnMut() + Send + 'static) -> Result<()> {
    ctrlc::set_handler(handler).map_err(|error| match error {
        ctrlc::Error::System(error) if error.raw_os_error().is_some() => {
            NoThread::of("the thread that waits for signals", &error).into()
        }
        ctrlc::Error::System(error) => anyhow!("cannot wait for signals: {error}"),
        other => other.into(),
    })
}
