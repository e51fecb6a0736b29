//! What follows from a timetable or a program without running it: proof, memory, time.

pub mod check;
pub mod measured;
pub(crate) mod memory;
pub mod one_order;
pub mod simulate;
pub mod timeline;

pub use check::Refusal;
pub use measured::MeasuredCosts;
pub use one_order::prove_in_one_order;
pub use simulate::{Costs, UniformCosts, simulate};
pub use timeline::{Event, Timeline, Work};
