//! Orders of ops: dependences, list scheduling by priorities, and lower bounds.
//!
//! All of them start from a [`Timetable`](crate::ir::timetable::Timetable): they take its cells and
//! ignore their order. The proof decides whether an order is safe.

mod bound;
mod capped;
mod choice;
mod edges;
#[cfg(test)]
mod exhaustive;
mod graph;
mod grid;
mod justify;
mod list;
mod objective;
mod relax;
mod swaps;
#[cfg(test)]
mod tests;
mod windows;

pub(crate) use capped::capped;
pub(crate) use choice::choice_bound;
pub(crate) use graph::{Graph, makespan, unordered};
pub(crate) use grid::unit;
pub(crate) use justify::{justified, releases, staggered};
pub use list::Limits;
pub(crate) use list::{Keys, Order, list};
pub(crate) use objective::OrderObjective;
pub(crate) use relax::{bound, parts};
pub(crate) use swaps::{N_SWAPS, SWAP_SHARE, SWAPS_PER_ORDER, swapped};
pub(crate) use windows::{DeadlineSearch, Windows};
