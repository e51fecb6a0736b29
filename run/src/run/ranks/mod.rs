//! The ranks of a run: the steps of one rank, and messages between processes besides those of the training itself.

pub(super) mod fingerprint;
pub(super) mod gather;
pub(super) mod in_turn;
pub(super) mod processes;
pub(super) mod rank;
pub(super) mod replica_devices;
pub(super) mod steps;
pub(super) mod verify;
