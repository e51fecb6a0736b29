//! PipeDream: 1F1B without a flush, an update after every micro-batch.

use super::grid::Grid;
use super::shape::MAX_OPS;
use super::{Parameter, Schedule, Shape, Unfit};
use crate::ir::op::{Kind, Span};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;
use crate::ir::update::Update;

pub(super) struct PipeDream;

impl Schedule for PipeDream {
    facts! {
        name: "pipedream";
        about: "1F1B without a flush, an update per micro-batch; no bubble, up to D versions of the weights";
        paper: "Narayanan et al., PipeDream, SOSP 2019, arXiv 1806.03377";
        place: "figure 4, section 3.3";
        reads: [Parameter::Window];
    }

    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        without_flush(self, shape, Update::Stash { n_steps: shape.window })
    }
}

/// 1F1B over all micro-batches of the window: stage `s` does `F_m` in slot `s + 2m` and `B_m` in
/// slot `2D-1-s + 2m`.
pub(super) fn without_flush(
    schedule: &dyn Schedule,
    shape: &Shape,
    update: Update,
) -> Result<Timetable, Unfit> {
    shape.check(schedule)?;
    let longest = MAX_OPS / (2 * shape.depth as u64 * u64::from(shape.n_micro_batches));
    if !(1..=longest).contains(&u64::from(shape.window)) {
        let reason = format!("a window of {} steps is not in 1..={longest}", shape.window);
        let nearest = u64::from(shape.window).clamp(1, longest);
        return Err(Unfit::new(schedule, reason, format!("a window of {nearest}")));
    }
    let n_micro_batches = shape.n_micro_batches * shape.window;
    let shape = Shape { n_micro_batches, ..*shape };
    let d = shape.depth as u64;
    let mut grid = Grid::new(Placement::line(shape.depth));
    for s in 0..shape.depth {
        for m in 0..n_micro_batches {
            let stage = s as u64;
            let micro = u64::from(m);
            grid.put(stage + 2 * micro, Kind::Forward, 0, s, Span::one(m));
            grid.put(2 * d - 1 - stage + 2 * micro, Kind::Backward, 0, s, Span::one(m));
        }
    }
    Ok(Timetable { update, ..grid.finish(schedule, &shape) })
}
