//! Progress of a run, and its results at the end.

pub(super) mod pace;
pub(super) mod predicted;
pub(super) mod trained;
pub(super) mod watch;
