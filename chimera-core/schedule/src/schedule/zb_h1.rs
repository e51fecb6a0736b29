//! ZB-H1: 1F1B with split backwards, so that weight halves fill the drain.

use super::phases::Next::{F, I, W};
use super::phases::{self, PhaseQueue, PhaseRow};
use super::{Schedule, Shape, Unfit};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;

pub(super) struct ZbH1;

impl Schedule for ZbH1 {
    facts! {
        name: "zb-h1";
        about: "1F1B with split backwards, weight halves late; a third of the bubbles, same activation memory";
        paper: "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv 2401.10241";
        place: "figure 3 (top), section 2.1";
    }

    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        shape.check(self)?;
        Ok(zero_bubble(self, shape, 1))
    }
}

/// 1F1B's order of forwards and input halves, after `eagerness` times its warm-up. On stage `s` the
/// weight half of a micro-batch follows the input half of the one `eagerness * s` later.
pub(super) fn zero_bubble(schedule: &dyn Schedule, shape: &Shape, eagerness: u32) -> Timetable {
    let (d, n) = (shape.depth as u32, shape.n_micro_batches);
    phases::timetable(schedule, shape, Placement::line(shape.depth), |stage| {
        let s = stage as u32;
        PhaseRow::new([PhaseQueue::new(0, stage, 0..n)])
            .repeat(eagerness * (d - 1 - s), &[F(0)])
            .repeat(eagerness * s, &[F(0), I(0)])
            .repeat(n, &[F(0), I(0), W])
    })
}
