//! Idle time: its causes, the windows that are free, and the delay that each op can take.

pub mod bubble;
pub mod slack;
pub mod windows;
