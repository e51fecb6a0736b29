//! GPipe: all forwards, then all backwards.

use super::grid::Grid;
use super::{Schedule, Shape, Unfit};
use crate::ir::op::{Kind, Span};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;

pub(super) struct GPipe;

impl Schedule for GPipe {
    facts! {
        name: "gpipe";
        about: "all forwards, then all backwards; holds the activations of all N micro-batches";
        paper: "Huang et al., GPipe, NeurIPS 2019, arXiv 1811.06965";
        place: "figure 2c";
    }

    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        shape.check(self)?;
        let (d, n) = (shape.depth as u64, shape.n_micro_batches);
        let mut grid = Grid::new(Placement::line(shape.depth));
        for s in 0..shape.depth {
            for m in 0..n {
                let stage = s as u64;
                let micro = u64::from(m);
                grid.put(stage + micro, Kind::Forward, 0, s, Span::one(m));
                let backward = u64::from(n) + 2 * (d - 1) - stage + micro;
                grid.put(backward, Kind::Backward, 0, s, Span::one(m));
            }
        }
        Ok(grid.finish(self, shape))
    }
}
