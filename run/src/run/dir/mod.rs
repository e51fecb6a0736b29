//! The folder of a run: finding it, locking it, and its files.

pub(super) mod claim;
pub(super) mod folder;
pub(super) mod history;
pub(super) mod layout;
pub(super) mod lock;
pub(super) mod outputs;
