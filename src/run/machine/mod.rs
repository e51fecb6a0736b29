//! What a run takes of its machine: cores, memory, its environment, and the launcher that started it.

pub(super) mod available_memory;
pub(super) mod cores;
pub mod launch;
pub(super) mod memory_check;
pub mod outside;
