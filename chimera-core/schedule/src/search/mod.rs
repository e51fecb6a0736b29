//! The search for the shortest order of a step's ops: its starts, the improvement of an order, and
//! the whole search on a placement. [`auto`] runs it for a shape.

mod across;
mod auto;
mod clock;
mod improve;
mod limits;
mod pattern;
mod portfolio;
mod problem;
mod proof;
mod report;
mod shortest;
mod space;
mod starts;

pub use across::across;
pub use auto::{ABOUT, AUTO, AutoError, Where, auto, auto_with};
pub use clock::Clock;
pub use improve::{Found, Progress, Search, search};
pub use report::{Across, Limit, Report};
pub use shortest::shortest;
pub use space::Space;
pub use starts::{Allowed, starts};
