//! Reports of what is fetched.

use std::sync::OnceLock;

use super::error::Source;

/// A moment of a download.
pub enum Event<'e> {
    /// The download of a model's files begins, at this commit.
    Begins {
        /// The model.
        from: &'e Source,
        /// The commit of its revision.
        commit: &'e str,
    },
    /// Part of a file has arrived.
    Receives {
        /// The file.
        file: &'e str,
        /// Bytes that are here.
        bytes: u64,
        /// Bytes of the file.
        of: Option<u64>,
    },
    /// A file is complete and in the cache.
    Ends {
        /// The file.
        file: &'e str,
        /// Bytes of the file.
        bytes: u64,
    },
    /// The hub does not answer, so the copy in the cache is used.
    Stale {
        /// The model.
        from: &'e Source,
        /// The cause.
        reason: &'e str,
    },
}

static LISTENER: OnceLock<fn(&Event<'_>)> = OnceLock::new();

/// Reports every download of this process to `listener`. Only the first call counts.
pub fn report_to(listener: fn(&Event<'_>)) {
    let _ = LISTENER.set(listener);
}

/// Reports a moment.
#[cfg(feature = "hub")]
pub(super) fn report(event: &Event<'_>) {
    if let Some(listener) = LISTENER.get() {
        listener(event);
    }
}
