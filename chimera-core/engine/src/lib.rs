//! Runs proven programs: devices, transports, stages, and the engine that executes one row of a
//! program on each rank.
//!
//! Start at [`stage`] (implemented by models), [`device`] and [`comm`] (implemented by backends and
//! transports) and [`trainer`] (everything in one call).

pub mod comm;
pub mod device;
pub mod engine;
pub mod fault;
pub mod layers;
pub mod stage;
pub mod trainer;
