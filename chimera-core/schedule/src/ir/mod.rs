//! The description of a schedule: identifiers, ops, placement, order and their notation.

pub mod compression;
pub mod few;
pub mod graph;
pub mod ids;
mod models;
pub mod notation;
pub mod op;
mod opposite;
pub mod placement;
pub mod timetable;
pub mod update;
