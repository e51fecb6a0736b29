//! The ranks of a run: one rank's steps, and what ranks that are processes exchange beside the training itself.

pub(super) mod fingerprint;
pub(super) mod gather;
pub(super) mod in_turn;
#[cfg_attr(not(feature = "nccl"), path = "no_nccl.rs")]
pub(super) mod nccl;
pub(super) mod processes;
pub(super) mod rank;
pub(super) mod replica_devices;
pub(super) mod steps;
pub(super) mod verify;
