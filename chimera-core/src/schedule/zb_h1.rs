//! ZB-H1: 1F1B whose backwards are split, so that weight halves fill the drain.

use super::grid::Grid;
use super::{Schedule, Shape, Source, Unfit};
use crate::op::{Kind, Span};
use crate::placement::Placement;
use crate::timetable::Timetable;

pub(super) struct ZbH1;

impl Schedule for ZbH1 {
    fn name(&self) -> &'static str {
        "zb-h1"
    }

    fn about(&self) -> &'static str {
        "1F1B with split backwards, weight halves late; a third of the bubbles, same residuals"
    }

    fn source(&self) -> Source {
        Source {
            paper: "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv 2401.10241",
            place: "figure 2, section 2.2",
        }
    }

    /// Stage `s` keeps 1F1B's order of forwards and input halves; the weight half of a micro-batch
    /// follows the input half of the one `s` later, and what is left comes at the end.
    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        shape.check(self)?;
        let (d, n) = (shape.depth as u32, shape.n_micro_batches);
        let mut grid = Grid::new(Placement::line(shape.depth));
        for s in 0..d {
            let mut slots = 0..;
            let mut put = |kind, micro| {
                if let Some(slot) = slots.next() {
                    grid.put(slot, kind, 0, s as usize, Span::one(micro));
                }
            };
            let n_warm_up = (d - 1 - s).min(n);
            (0..n_warm_up).for_each(|m| put(Kind::Forward, m));
            for m in 0..n {
                if m + n_warm_up < n {
                    put(Kind::Forward, m + n_warm_up);
                }
                put(Kind::BackwardInput, m);
                if m >= s {
                    put(Kind::BackwardWeight, m - s);
                }
            }
            (n.saturating_sub(s)..n).for_each(|m| put(Kind::BackwardWeight, m));
        }
        Ok(grid.finish(self, shape))
    }
}
