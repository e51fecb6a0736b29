//! GEMS: two mirrored pipes; micro-batches alternate between them, one at a time.

use super::grid::Grid;
use super::{Schedule, Shape, Unfit};
use crate::ir::op::{Kind, Span};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;

pub(super) struct Gems;

impl Schedule for Gems {
    facts! {
        name: "gems";
        about: "two mirrored pipes in turn; holds the activations of one micro-batch, mostly idle";
        paper: "Jain et al., GEMS, SC 2020";
        place: "section IV";
    }

    /// Every worker's row is `F0 B0 F1 B1 …`, so that the next forward runs while the last backward
    /// drains.
    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        shape.check(self)?;
        let mut grid = Grid::new(Placement::mirrored(shape.depth, 1));
        for s in 0..shape.depth {
            for m in 0..shape.n_micro_batches {
                let turn = 2 * u64::from(m);
                let pipe = m as usize % 2;
                grid.put(turn, Kind::Forward, pipe, s, Span::one(m));
                grid.put(turn + 1, Kind::Backward, pipe, s, Span::one(m));
            }
        }
        Ok(grid.finish(self, shape))
    }
}
