//! What follows from a timetable or a program without running it: proof, memory, time.

pub mod bubble;
pub(crate) mod check;
pub mod closed_form;
pub mod critical;
mod deadlock;
pub mod diagnosis;
mod known_sums;
pub mod measured;
pub mod memory;
pub mod network;
pub mod one_order;
pub mod refusal;
pub mod simulate;
pub mod slack;
pub(crate) mod structure;
pub mod timeline;
mod update_waits;
pub(crate) mod versions;
pub mod windows;

pub use bubble::{IdleTime, measured_idle, simulated_idle};
pub use closed_form::{ClosedForm, Reduced};
pub use critical::{link, path_length};
pub use diagnosis::{Diagnosis, HangReport, Need, Position};
pub use measured::MeasuredCosts;
pub use memory::{peak_bytes, peak_kept, peak_working_bytes};
pub use network::{Link, Network, NetworkCosts, ReductionAlgorithm};
pub use one_order::{Together, prove_in_groups, prove_in_one_order, rows_in_one_order};
pub use refusal::{Reason, Refusal, Savings};
pub(crate) use simulate::simulate_compute;
pub use simulate::{behind_makespan, simulate};
pub use slack::slack;
pub use timeline::{Awaited, Event, KernelRun, Timeline, Wait, Work, bubble_ratio};
pub use windows::{FreeWindow, windows};
