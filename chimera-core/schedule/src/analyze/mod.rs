//! Analyses of timetables and programs without running them: proof, memory, time.

pub mod diagnosis;
pub mod gradients;
mod idle;
pub mod links;
pub mod memory;
pub mod one_order;
pub(crate) mod proof;
mod simulation;
pub mod weights;

pub use diagnosis::{Diagnosis, HangReport, Need, Position};
pub use gradients::{GradientPeaks, GradientSizes, peaks_with_gradients};
pub use idle::bubble::{IdleTime, measured_idle, simulated_idle};
pub use idle::slack::slack;
pub use idle::windows::{FreeWindow, windows};
pub use idle::{bubble, slack, windows};
pub use links::{Topology, simulate_on};
pub use memory::{peak_bytes, peak_kept, peak_working_bytes};
pub use one_order::{Together, prove_in_groups, prove_in_one_order, rows_in_one_order};
pub use proof::refusal;
pub use proof::refusal::{Reason, Refusal, Savings};
pub(crate) use proof::{check, structure};
pub use simulation::closed_form::{ClosedForm, Reduced};
pub use simulation::critical::{link, path_length};
pub use simulation::end::behind_makespan;
pub use simulation::measured::MeasuredCosts;
pub use simulation::network::{Link, Network, NetworkCosts, ReductionAlgorithm};
pub use simulation::shards::FreeShards;
pub use simulation::simulate::simulate;
pub(crate) use simulation::simulate::simulate_compute;
pub use simulation::timeline::{Awaited, Event, KernelRun, Timeline, Wait, Work, bubble_ratio};
pub use simulation::{closed_form, critical, measured, network, simulate, timeline};
pub use weights::WeightSizes;
