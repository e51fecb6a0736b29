//! Runs proven programs: devices, transports, stages, and the engine that runs a row per rank.
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
