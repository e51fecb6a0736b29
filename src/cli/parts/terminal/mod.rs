//! The terminal and the shell: output, exit codes, signals and completion.

pub(crate) mod args;
pub(crate) mod browser;
pub(crate) mod console;
pub(crate) mod downloads;
pub(crate) mod exit;
pub(crate) mod leftover;
pub(crate) mod message;
pub(crate) mod offered;
pub(crate) mod output;
pub(crate) mod patterns;
pub(crate) mod progress;
pub(crate) mod signals;
pub(crate) mod signed;
