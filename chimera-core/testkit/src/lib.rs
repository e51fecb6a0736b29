//! Tools for testing pipelines: a transport with seeded random interleaving, stages that sleep
//! instead of computing, and small trainings with results that must agree under every schedule.

pub mod equivalence;
pub mod simulated;
pub mod stand_in;
pub mod survival;
