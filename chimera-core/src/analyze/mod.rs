//! What follows from a timetable or a program without running it: proof, memory, time.

pub(crate) mod check;
pub mod measured;
pub(crate) mod memory;
pub mod one_order;
pub mod refusal;
pub mod simulate;
pub(crate) mod structure;
pub mod timeline;
pub(crate) mod versions;

pub use measured::MeasuredCosts;
pub use one_order::prove_in_one_order;
pub use refusal::{Reason, Refusal};
pub use simulate::{Costs, UniformCosts, simulate};
pub use timeline::{Event, Timeline, Work};
