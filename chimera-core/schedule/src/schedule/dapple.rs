//! 1F1B: one forward, one backward, with a flush at the end of the step, as in DAPPLE.

use super::grid::Grid;
use super::{Parameter, Schedule, Shape, Unfit};
use crate::ir::op::{Kind, Span};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;

pub(super) struct Dapple;

/// Larger groups take more memory and gain little.
const MOST_IN_TURN: u32 = 8;

impl Schedule for Dapple {
    facts! {
        name: "1f1b";
        aliases: ["dapple"];
        about: "one forward, one backward; GPipe's bubbles with the peak activations of D micro-batches";
        paper: "Fan et al., DAPPLE, PPoPP 2021, arXiv 2007.01045";
        place: "figure 3b";
        reads: [Parameter::InTurn];
    }

    /// Larger groups.
    fn parameters(&self, plain: Shape) -> Vec<(Shape, String)> {
        let groups = 2..=MOST_IN_TURN.min(plain.depth as u32);
        let group = |n_in_turn| (Shape { n_in_turn, ..plain }, format!("--in-turn {n_in_turn}"));
        groups.map(group).collect()
    }

    /// Stage `s` does the forwards of the g-th group of k micro-batches in slot `s + 2g` and their
    /// backwards in slot `2D-1-s + 2g`: with k = 1, `D-1-s` forwards first, then one of each in
    /// turn.
    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        shape.check(self)?;
        let (d, k) = (shape.depth as u64, shape.n_in_turn);
        if k == 0 {
            return Err(Unfit::new(self, "0 forwards in turn never end", "1 in turn"));
        }
        let mut grid = Grid::new(Placement::line(shape.depth));
        for s in 0..shape.depth {
            for m in 0..shape.n_micro_batches {
                let stage = s as u64;
                let group = u64::from(m / k);
                grid.put(stage + 2 * group, Kind::Forward, 0, s, Span::one(m));
                grid.put(2 * d - 1 - stage + 2 * group, Kind::Backward, 0, s, Span::one(m));
            }
        }
        Ok(grid.finish(self, shape))
    }
}
