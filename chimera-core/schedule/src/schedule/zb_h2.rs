//! ZB-H2: ZB-H1 with twice the warm-up, so that no worker waits once it has begun.

use super::zb_h1::zero_bubble;
use super::{Citation, Schedule, Shape, Unfit};
use crate::ir::timetable::Timetable;

pub(super) struct ZbH2;

impl Schedule for ZbH2 {
    fn name(&self) -> &'static str {
        "zb-h2"
    }

    fn about(&self) -> &'static str {
        "ZB-H1 with twice the warm-up; no bubble within a worker's row, twice the activation memory"
    }

    fn source(&self) -> Citation {
        Citation {
            paper: "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv 2401.10241",
            place: "figure 3 (bottom), section 2.2",
        }
    }

    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        shape.check(self)?;
        Ok(zero_bubble(self, shape, 2))
    }
}
