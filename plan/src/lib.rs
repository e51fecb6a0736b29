//! From settings to a plan of a training: a proven program, its memory and its time, by what a
//! machine was measured to take.

#[cfg(test)]
mod absent;
pub mod plan;
pub mod profile;
