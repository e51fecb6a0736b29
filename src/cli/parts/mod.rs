//! What several subcommands share: options, a schedule as they describe it, what is shown, how a process ends.

pub(crate) mod console;
pub(crate) mod costs;
#[cfg(feature = "mpi")]
pub(crate) mod ends;
pub(crate) mod entry;
pub(crate) mod exit;
pub(crate) mod model;
pub(crate) mod network;
pub(crate) mod outcome;
pub(crate) mod progress;
pub(crate) mod scheduled;
pub(crate) mod shape;
#[cfg(all(feature = "mpi", unix, debug_assertions))]
pub(crate) mod strike;
