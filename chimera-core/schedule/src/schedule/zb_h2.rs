//! ZB-H2: ZB-H1 with twice the warm-up, so that no worker waits once it has begun.

use super::zb_h1::zero_bubble;
use super::{Schedule, Shape, Unfit};
use crate::ir::timetable::Timetable;

pub(super) struct ZbH2;

impl Schedule for ZbH2 {
    facts! {
        name: "zb-h2";
        about: "ZB-H1 with twice the warm-up; no bubble within a worker's row, twice the activation memory";
        paper: "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv 2401.10241";
        place: "figure 3 (bottom), section 2.2";
    }

    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        shape.check(self)?;
        Ok(zero_bubble(self, shape, 2))
    }
}
