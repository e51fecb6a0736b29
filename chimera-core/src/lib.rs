//! One description of a pipeline schedule, from which the same code proves it safe, predicts its time
//! and memory, draws it, and trains a real network with it.
//!
//! Start at [`schedule`] (how schedules are made), [`effects`] (the one rule that everything follows
//! from), [`lower`] (the only way to a runnable program) and [`engine`] (which runs one).

mod activation_memory;
pub mod analyze;
mod collective;
pub mod comm;
pub mod costs;
pub mod device;
pub mod effects;
pub mod engine;
pub mod equivalence;
pub mod fault;
pub mod few;
pub mod graph;
pub mod ids;
pub mod interchange;
pub mod interp;
pub mod layers;
pub mod ledger;
pub mod lower;
pub mod model;
pub mod notation;
pub mod op;
mod order;
pub mod partition;
pub mod placement;
pub mod prelude;
pub mod program;
pub mod render;
pub mod request;
pub mod schedule;
pub mod search;
mod shards;
pub mod stage;
pub mod stand_in;
pub mod survival;
pub mod timetable;
pub mod trainer;
pub mod update;
