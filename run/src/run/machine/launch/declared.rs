//! Launches that the command line describes, or the variables of torchrun.

use std::sync::OnceLock;

use super::Launch;

/// The variables of torchrun. Other programs set some of them too, so they only count on request.
const TORCHRUN: [&str; 4] = ["WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK"];

/// The launch that the command line of this process describes.
static DECLARED: OnceLock<Launch> = OnceLock::new();

/// Returns the launch that was declared in this process.
pub(super) fn get() -> Option<Launch> {
    DECLARED.get().cloned()
}

impl Launch {
    /// Sets the place of this process in its job. Only the first call counts.
    pub fn declare(self) {
        let _ = DECLARED.set(self);
    }

    /// Returns the launch that the variables of PyTorch's `torchrun` describe, if they are complete.
    pub fn torchrun() -> Option<Launch> {
        Launch::by("torchrun", TORCHRUN, |name| std::env::var(name).ok())
    }
}
