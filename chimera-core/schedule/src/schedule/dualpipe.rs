//! DualPipe: two pipes in opposite directions, a forward of one overlapped with a backward of the
//! other.

use super::phases::Next::{B, F, FB, I, W};
use super::phases::{self, PhaseQueue, PhaseRow};
use super::{Schedule, Shape, Unfit};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;

pub(super) struct DualPipe;

impl Schedule for DualPipe {
    facts! {
        name: "dualpipe";
        about: "two mirrored pipes, forwards paired with backwards to overlap; 2 copies of the weights";
        paper: "DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, arXiv 2412.19437";
        place: "figure 5, section 3.2.1";
    }

    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        shape.check(self)?;
        shape.check_even_depth(self)?;
        shape.check_twice_depth(self)?;
        if !shape.n_micro_batches.is_multiple_of(2) {
            let n = shape.n_micro_batches;
            let reason = format!("{n} micro-batches are odd, and both pipes carry as many");
            let nearest = format!("{} or {} micro-batches", n - 1, n + 1);
            return Err(Unfit::new(self, reason, nearest));
        }
        let (d, n) = (shape.depth, shape.n_micro_batches);
        let placement = Placement::mirrored(d, 1);
        Ok(phases::timetable(self, shape, placement, |worker| {
            let down = PhaseQueue::new(0, worker, 0..n / 2);
            let up = PhaseQueue::new(1, d - 1 - worker, n / 2..n);
            let lanes = if worker < d / 2 { [down, up] } else { [up, down] };
            dual(lanes, n / 2, d as u32 / 2, worker.min(d - 1 - worker) as u32)
        }))
    }
}

/// The row of the worker at position `h` of the `half` from an end of the pipes to their middle,
/// where each lane has `n` micro-batches: lane 0 on its way to the middle, lane 1 on its way from
/// there.
///
/// # Panics
/// If `n` is less than `2 * half`.
pub(super) fn dual(lanes: [PhaseQueue; 2], n: u32, half: u32, h: u32) -> PhaseRow {
    let to_middle = half - 1 - h;
    let inner = h + 1;
    let n_both = n - 2 * half + inner;
    // In the middle the first backward comes late, and the forward need not wait for it.
    let n_apart = u32::from(to_middle == 0);
    PhaseRow::new(lanes)
        .repeat(2 * to_middle, &[F(0)])
        .repeat(inner, &[F(0), F(1)])
        .repeat(to_middle, &[I(1), W, F(1)])
        .repeat(n_apart, &[F(0), B(1), FB(1, 0)])
        .repeat(n_both - n_apart, &[FB(0, 1), FB(1, 0)])
        .repeat(to_middle, &[B(1), FB(1, 0)])
        // The second half of these backwards is split; the weight halves fill the drain.
        .repeat(inner / 2, &[B(1), B(0)])
        .repeat(inner % 2, &[B(1), I(0)])
        .repeat(inner / 2, &[I(1), I(0)])
        .repeat(to_middle, &[W, I(0)])
        .repeat(inner, &[W])
}
