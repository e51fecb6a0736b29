//! The search for the shortest order of a step's ops: its starts, the improvement of an order, and
//! the whole search on a placement. [`auto`] runs it for a shape.

mod auto;
mod clock;
mod improve;
mod shortest;
mod starts;

pub use auto::{ABOUT, AUTO, AutoError, Report, Where, auto};
pub use clock::Clock;
pub use improve::{Found, Progress, Search, search};
pub use shortest::shortest;
pub use starts::{Allowed, starts};
