//! Interleaved 1F1B: several chunks of the model per worker, so that the pipe fills sooner.

use super::phases::Next::{B, F};
use super::phases::{self, PhaseQueue, PhaseRow};
use super::{Parameter, Schedule, Shape, Unfit};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;

pub(super) struct Interleaved;

impl Schedule for Interleaved {
    facts! {
        name: "interleaved";
        aliases: ["Interleaved1F1B"];
        about: "1F1B with v chunks per worker; the bubbles divided by v, v times the messages";
        paper: "Narayanan et al., Megatron-LM, SC 2021, arXiv 2104.04473";
        place: "figure 4, section 2.2";
        reads: [Parameter::Chunks];
    }

    /// Forwards go in groups of D micro-batches, each through all chunks before the next group
    /// begins. Backwards do the same, with the last chunk first.
    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        shape.check(self)?;
        let (d, n, v) = (shape.depth as u32, shape.n_micro_batches, shape.n_chunks as u32);
        self.fits(shape)?;
        let placement = Placement::interleaved(shape.depth, shape.n_chunks);
        let group = d * v;
        let n_forwards = n * v;
        Ok(phases::timetable(self, shape, placement, |worker| {
            let p = worker as u32;
            // The k-th forward, or the k-th backward of the mirrored pipe.
            let chunk = move |k: u32| k % group / d;
            let micro = move |k: u32| k / group * d + k % d;
            let visit = move |chunk: u32, k| (0, (chunk * d + p) as usize, micro(k));
            let forwards = (0..n_forwards).map(move |k| visit(chunk(k), k));
            let backwards = (0..n_forwards).map(move |k| visit(v - 1 - chunk(k), k));
            let n_warm_up = if v == 1 { d - 1 - p } else { 2 * (d - 1 - p) + (v - 1) * d };
            PhaseRow::new([PhaseQueue::of(forwards, backwards)])
                .repeat(n_warm_up, &[F(0)])
                .repeat(n_forwards, &[F(0), B(0)])
        }))
    }
}

impl Interleaved {
    fn fits(&self, shape: &Shape) -> Result<(), Unfit> {
        shape.check_chunks(self, shape.n_chunks, 1, "chunks")?;
        let d = shape.depth as u32;
        let n_micro_batches = shape.n_micro_batches;
        if !n_micro_batches.is_multiple_of(d) {
            let below = n_micro_batches / d * d;
            let reason = format!("{n_micro_batches} micro-batches are not a multiple of depth {d}");
            let nearest = match below {
                0 => format!("{d} micro-batches"),
                below => format!("{below} or {} micro-batches", below + d),
            };
            return Err(Unfit::new(self, reason, nearest));
        }
        Ok(())
    }
}
