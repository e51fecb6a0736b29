//! The worker of a rank: runs its row, and saves or restores its state between programs.

pub(crate) mod evaluate;
pub(crate) mod replicas;
pub(crate) mod snapshot;
pub(crate) mod windows;
pub(crate) mod worker;
pub(crate) mod worker_state;
