//! Orders of ops: what waits for what, which order a list of priorities gives, and how short any order can
//! be.
//!
//! All start from a [`Timetable`](crate::ir::timetable::Timetable), of which they take the cells and forget
//! the order. Whether an order is safe is for the proof to say.

mod bound;
mod capped;
mod graph;
mod justify;
mod list;
mod objective;
mod relax;
#[cfg(test)]
mod tests;

pub(crate) use graph::{Graph, makespan, unordered};
pub(crate) use justify::{justified, releases, staggered};
pub use list::Limits;
pub(crate) use list::{Keys, Order, list};
pub(crate) use objective::OrderObjective;
pub(crate) use relax::bound;
