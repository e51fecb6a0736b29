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
        without_flush(self, shape, Update::Stash { n_steps: shape.window }, 1)
    }
}

/// 1F1B over all groups of `n_forwards` micro-batches of the window, with one backward for each
/// group: stage `s` does the forwards of group `g` in slot `s + 2g` and their backward in slot
/// `2D-1-s + 2g`.
pub(super) fn without_flush(
    schedule: &dyn Schedule,
    shape: &Shape,
    update: Update,
    n_forwards: u16,
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
        for start in (0..n_micro_batches).step_by(usize::from(n_forwards)) {
            let stage = s as u64;
            let group = u64::from(start / u32::from(n_forwards));
            let span = Span { start, len: n_forwards };
            for m in span.units() {
                grid.put(stage + 2 * group, Kind::Forward, 0, s, Span::one(m));
            }
            grid.put(2 * d - 1 - stage + 2 * group, Kind::Backward, 0, s, span);
        }
    }
    Ok(Timetable { update, ..grid.finish(schedule, &shape) })
}
