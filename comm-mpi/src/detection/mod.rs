//! Detection of ranks whose processes have ended, on this host and on others.

pub(crate) mod door;
pub(crate) mod handles;
pub(crate) mod links;
pub(crate) mod peers;
pub(crate) mod watchdog;
