//! The end of a step.

use super::timeline::{Timeline, Work};
use crate::costs::Costs;
use crate::program::Program;

/// Time of a step after the makespan of its simulation: the step sync, unless it comes before
/// updates that are part of the timeline.
pub fn behind_makespan(program: &Program, simulated: &Timeline, costs: &impl Costs) -> f64 {
    let has_updates = simulated.events.iter().any(|event| matches!(event.work, Work::Step(_)));
    if has_updates && program.has_barrier() { 0.0 } else { costs.agree() }
}
