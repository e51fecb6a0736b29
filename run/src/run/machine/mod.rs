//! The machine of a run: cores, memory, environment, and the launcher that started it.

pub(super) mod available_memory;
pub(super) mod cores;
pub mod launch;
pub(super) mod memory_check;
pub mod outside;
