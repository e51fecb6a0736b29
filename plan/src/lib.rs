//! Plans a training from its settings: a proven program, its memory, and its time by measurements
//! of a machine.

#[cfg(test)]
mod absent;
pub mod plan;
pub mod profile;
