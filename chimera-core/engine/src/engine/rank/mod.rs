//! The worker of a rank: one row again and again, and what is taken from it or put back between programs.

pub(crate) mod evaluate;
pub(crate) mod replicas;
pub(crate) mod snapshot;
pub(crate) mod windows;
pub(crate) mod worker;
pub(crate) mod worker_state;
