//! Orders of ops: what waits for what, which order a list of priorities gives, how short any order can
//! be, and the search for a better one.
//!
//! All start from a [`Timetable`](crate::timetable::Timetable), of which they take the cells and forget
//! the order.

mod bound;
mod capped;
mod graph;
mod justify;
mod list;
mod relax;
mod search;
mod shortest;
mod starts;
#[cfg(test)]
mod tests;

pub(crate) use graph::Graph;
pub use graph::unordered;
pub(crate) use justify::{justified, releases, staggered};
pub(crate) use list::{Keys, Limits, list};
pub use search::{Found, Progress, Search, search};
pub use shortest::shortest;
pub use starts::{Allowed, starts};
