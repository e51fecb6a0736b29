//! DualPipeV: DualPipe folded in its middle, so that each stage exists once.

use super::dualpipe::dual;
use super::phases::{self, PhaseQueue};
use super::{Schedule, Shape, Unfit};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;

pub(super) struct DualPipeV;

impl Schedule for DualPipeV {
    facts! {
        name: "dualpipe-v";
        aliases: ["DualPipeV"];
        about: "DualPipe folded into a V: two chunks per worker in place of two copies of the weights";
        paper: "DeepSeek-AI, DualPipe, 2025, github.com/deepseek-ai/DualPipe";
        place: "dualpipev.py";
    }

    /// Here DualPipe's second pipe is the way back: worker `i` of D has chunks `i` and `2D-1-i`.
    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        shape.check(self)?;
        shape.check_chunks(self, 2, 1, "chunks")?;
        shape.check_twice_depth(self)?;
        let (d, n) = (shape.depth, shape.n_micro_batches);
        let placement = Placement::wave(d, 2);
        Ok(phases::timetable(self, shape, placement, |worker| {
            let lanes = [worker, 2 * d - 1 - worker].map(|chunk| PhaseQueue::new(0, chunk, 0..n));
            dual(lanes, n, d as u32, worker as u32)
        }))
    }
}
