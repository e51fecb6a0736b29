//! Faults: ranks that die or stall, and commands on hostile input.

pub(crate) mod fuzz;
pub(crate) mod hosts;
pub(crate) mod slurm;

pub(crate) mod ulfm;
