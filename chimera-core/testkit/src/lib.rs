//! Tools for testing pipelines: a transport whose interleaving a seed draws, compute that sleeps, and small trainings whose
//! results must agree under every schedule.

pub mod equivalence;
pub mod simulated;
pub mod stand_in;
pub mod survival;
