//! The sources of values: the command line, files, the environment, and other values.

pub(super) mod absent;
pub(super) mod check;
pub(super) mod file;
pub(super) mod follow;
pub(super) mod line;
pub(super) mod llama;
pub(super) mod origin;
pub(super) mod outside;
pub(super) mod peers;
pub(super) mod recipe;
pub(super) mod resolve;
pub(super) mod show;
mod zero;
