//! V-Min: a V with split backwards that holds about a third of the activations of 1F1B, with many
//! workers.

use super::building_block::{self, Offsets, PERIOD};
use super::{Schedule, Shape, Unfit};
use crate::ir::timetable::Timetable;

pub(super) struct VMin;

impl Schedule for VMin {
    facts! {
        name: "v-min";
        about: "a V of two chunks per worker, backwards split; towards a third of 1F1B's activation memory as D grows";
        paper: "Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024, arXiv 2405.15362";
        place: "figure 3, section 3";
    }

    /// Blocks with slots that never meet modulo six.
    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        let d = shape.depth as u64;
        let shift = if d.is_multiple_of(3) { 2 } else { 0 };
        building_block::timetable(
            self,
            shape,
            shape.depth.saturating_add(4) / 3,
            PERIOD as f64,
            |i| Offsets {
                forwards: [i, 2 * d - i - 1],
                inputs: [4 * d + shift - i - 1, 2 * d + shift + i],
            },
        )
    }
}
