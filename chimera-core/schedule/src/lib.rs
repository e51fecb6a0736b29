//! Pipeline schedules: one description from which the same code proves an order safe, predicts its
//! time and memory, searches for shorter ones, exchanges it with other systems and draws it. No
//! tensors, no threads, no files.
//!
//! Start at [`schedule`] (how schedules are made), [`effects`] (the one rule that everything
//! follows from) and [`lower`] (the only way to a [`Program`](program::Program)).

mod activation_memory;
pub mod analyze;
pub mod collective;
pub mod costs;
pub mod effects;
pub mod interchange;
pub mod interp;
mod ir;
pub mod ledger;
pub mod lower;
mod order;
pub mod partition;
pub mod program;
pub mod render;
pub mod request;
pub mod schedule;
pub mod search;
pub mod shards;

pub use ir::{few, graph, ids, notation, op, placement, timetable, update};
