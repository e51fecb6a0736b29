//! V-Half: a V with split backwards that holds about half of the activations of 1F1B, with many
//! workers.

use super::building_block::{self, Offsets, PERIOD};
use super::{Schedule, Shape, Unfit};
use crate::ir::timetable::Timetable;

pub(super) struct VHalf;

impl Schedule for VHalf {
    facts! {
        name: "v-half";
        about: "a V of two chunks per worker, backwards split; towards half of 1F1B's activation memory as D grows";
        paper: "Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024, arXiv 2405.15362";
        place: "figure 3, section 3";
    }

    /// Blocks with slots that never meet modulo six.
    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        let d = shape.depth as u64;
        let shift = if d.is_multiple_of(2) { 3 } else { 0 };
        building_block::timetable(self, shape, shape.depth.midpoint(2), PERIOD as f64, |i| {
            Offsets {
                forwards: [2 * i, 3 * d - i - 2],
                inputs: [6 * d + shift - i - 2, 3 * d + shift + 2 * i - 1],
            }
        })
    }
}
