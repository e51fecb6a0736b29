//! The search for the shortest order of a step's ops: where it begins, how it improves an order, and the
//! whole way from a placement.

mod improve;
mod shortest;
mod starts;

pub use improve::{Found, Progress, Search, search};
pub use shortest::shortest;
pub use starts::{Allowed, starts};
