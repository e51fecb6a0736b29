//! What is known of a run while it goes on, and when it has ended.

pub(super) mod pace;
pub(super) mod predicted;
pub(super) mod trained;
pub(super) mod watch;
