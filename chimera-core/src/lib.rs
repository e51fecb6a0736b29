//! One description of a pipeline schedule, from which the same code proves it safe, predicts its
//! time and memory, draws it, and trains a real network with it.
//!
//! This crate is a facade over three others: `chimera-pipeline-schedule` (schedules, proofs,
//! simulation, drawings), `chimera-pipeline-engine` (devices, transports, stages, training) and
//! `chimera-pipeline-models`.
//!
//! Start at [`schedule`] (making schedules), [`effects`] (the one rule that everything follows
//! from), [`lower`] (the only way to a runnable program) and [`engine`] (running a program).

pub mod prelude;

pub use chimera_engine::{comm, device, engine, fault, layers, stage, trainer};
pub use chimera_models::model;
pub use chimera_schedule::{
    analyze, compression, costs, effects, few, graph, ids, interchange, interp, ledger, lower,
    named_values, notation, op, partition, placement, program, render, request, schedule, search,
    timetable, update,
};
