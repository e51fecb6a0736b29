//! The proof of a program, and refusals of unsound ones.

pub(crate) mod check;
mod deadlock;
mod models;
pub mod refusal;
mod shards;
pub(crate) mod structure;
pub(crate) mod versions;
