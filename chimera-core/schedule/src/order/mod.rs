//! Orders of ops: dependences, list scheduling by priorities, and lower bounds.
//!
//! All of them start from a [`Timetable`](crate::ir::timetable::Timetable): they take its cells and
//! ignore their order. The proof decides whether an order is safe.

mod bound;
mod capped;
mod choice;
mod graph;
mod justify;
mod list;
mod objective;
mod relax;
#[cfg(test)]
mod tests;

pub(crate) use choice::choice_bound;
pub(crate) use graph::{Graph, makespan, unordered};
pub(crate) use justify::{justified, releases, staggered};
pub use list::Limits;
pub(crate) use list::{Keys, Order, list};
pub(crate) use objective::OrderObjective;
pub(crate) use relax::bound;
