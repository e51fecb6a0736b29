//! ZB-V: a V with split backwards that leaves no bubble inside.

use super::building_block::{self, Offsets};
use super::{Schedule, Shape, Unfit};
use crate::ir::timetable::Timetable;

pub(super) struct ZbV;

impl Schedule for ZbV {
    facts! {
        name: "zb-v";
        aliases: ["ZBVZeroBubble"];
        about: "a V of two chunks per worker, backwards split; no bubble inside, 1F1B's activation memory";
        paper: "Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024, arXiv 2405.15362";
        place: "figure 3, section 3";
    }

    /// Blocks with slots that never meet modulo six.
    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        let d = shape.depth as u64;
        building_block::timetable(self, shape, shape.depth, f64::INFINITY, |i| Offsets {
            forwards: [4 * i, 6 * d - 5 - 2 * i],
            inputs: [12 * d - 9 - 2 * i, 6 * d - 4 + 4 * i],
        })
    }
}
