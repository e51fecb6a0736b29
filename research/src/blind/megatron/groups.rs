//! Megatron-LM's order of passes: 1F1B over chunks, in groups of micro-batches of any size.

use chimera_core::placement::Placement;
use chimera_core::schedule::phases::Next::{B, F};
use chimera_core::schedule::phases::{self, PhaseQueue, PhaseRow};
use chimera_core::schedule::{Citation, Schedule, Shape, Unfit};
use chimera_core::timetable::Timetable;

/// The order, with as many micro-batches in a group.
pub(super) struct Groups(pub(super) u32);

impl Schedule for Groups {
    fn name(&self) -> &'static str {
        "megatron"
    }

    fn about(&self) -> &'static str {
        "1F1B over chunks, in groups of micro-batches of any size"
    }

    fn source(&self) -> Citation {
        Citation { paper: "Narayanan et al., Megatron-LM, SC 2021", place: "section 2.2" }
    }

    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        let (d, v) = (shape.depth as u32, shape.n_chunks as u32);
        let passes = passes(shape.n_micro_batches, v, self.0);
        let placement = Placement::interleaved(shape.depth, shape.n_chunks);
        Ok(phases::timetable(self, shape, placement, |worker| {
            let p = worker as u32;
            let visit = move |chunk: u32, micro| (0, (chunk * d + p) as usize, micro);
            let forwards = passes.clone().into_iter().map(move |(c, micro)| visit(c, micro));
            let mirrored = passes.clone().into_iter();
            let backwards = mirrored.map(move |(c, micro)| visit(v - 1 - c, micro));
            let n_warm_up = if v == 1 { d - 1 - p } else { 2 * (d - 1 - p) + (v - 1) * self.0 };
            PhaseRow::new([PhaseQueue::of(forwards, backwards)])
                .repeat(n_warm_up, &[F(0)])
                .repeat(passes.len() as u32, &[F(0), B(0)])
        }))
    }
}

/// Returns the forwards of a rank as chunks and micro-batches: each group through all chunks.
fn passes(n: u32, chunks: u32, group: u32) -> Vec<(u32, u32)> {
    let mut passes = Vec::new();
    for begin in (0..n).step_by(group.max(1) as usize) {
        for chunk in 0..chunks {
            passes.extend((begin..n.min(begin + group)).map(|micro| (chunk, micro)));
        }
    }
    passes
}

#[cfg(test)]
mod tests {
    use chimera_core::lower::{Lowering, lower};
    use chimera_core::schedule::find;

    use super::*;

    #[test]
    fn groups_of_the_depth_are_1f1b_and_interleaved() {
        for (name, chunks) in [("1f1b", 1), ("interleaved", 3)] {
            let shape = Shape { n_chunks: chunks, ..Shape::new(4, 8) };
            let ours = find(name).unwrap().timetable(&shape).unwrap();
            assert_eq!(Groups(4).timetable(&shape).unwrap().rows, ours.rows, "{name}");
        }
    }

    /// More micro-batches in a group than ranks: more of them are in flight.
    #[test]
    fn larger_groups_are_safe_and_hold_more() {
        let peak = |group, n| {
            let shape = Shape { n_chunks: 3, ..Shape::new(4, n) };
            let timetable = Groups(group).timetable(&shape).unwrap();
            lower(&timetable, &Lowering::default()).unwrap().peak()
        };
        assert!(peak(5, 15) > peak(4, 16));
        assert!(peak(5, 8) > 0.0);
    }
}
