//! Runs proven programs: devices, transports, stages, and the engine that drives one row of a program on each rank.
//!
//! Start at [`stage`] (what a model implements), [`device`] and [`comm`] (what a backend and a transport implement) and
//! [`trainer`] (the whole of it in one call).

pub mod comm;
pub mod device;
pub mod engine;
pub mod fault;
pub mod layers;
pub mod stage;
pub mod trainer;
