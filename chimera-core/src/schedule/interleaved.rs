//! Interleaved 1F1B: several chunks of the model per worker, so that the pipe fills sooner.

use super::grid::Grid;
use super::{Schedule, Shape, Source, Unfit};
use crate::op::{Kind, Span};
use crate::placement::Placement;
use crate::timetable::Timetable;

pub(super) struct Interleaved;

impl Schedule for Interleaved {
    fn name(&self) -> &'static str {
        "interleaved"
    }

    fn about(&self) -> &'static str {
        "1F1B with v chunks per worker; the bubbles divided by v, v times the messages"
    }

    fn source(&self) -> Source {
        Source {
            paper: "Narayanan et al., Megatron-LM, SC 2021, arXiv 2104.04473",
            place: "figure 4, section 2.2",
        }
    }

    /// Forwards go by groups of D micro-batches, each through all chunks before the next group begins;
    /// backwards likewise, last chunk first.
    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        shape.check(self)?;
        let (d, n, v) = (shape.depth as u32, shape.n_micro_batches, shape.n_chunks as u32);
        self.fits(shape)?;
        let mut grid = Grid::new(Placement::interleaved(shape.depth, shape.n_chunks));
        let (group, n_forwards) = (d * v, n * v);
        for p in 0..d {
            // Of the k-th forward, or of the k-th backward of the mirrored pipe: chunk and micro-batch.
            let chunk = |k: u32| k % group / d;
            let micro = |k: u32| Span::one(k / group * d + k % d);
            let mut slots = 0..;
            let mut put = |kind, chunk: u32, micro| {
                if let Some(slot) = slots.next() {
                    grid.put(slot, kind, 0, (chunk * d + p) as usize, micro);
                }
            };
            let far = if v == 1 { d - 1 - p } else { 2 * (d - 1 - p) + (v - 1) * d };
            let n_warm_up = far.min(n_forwards);
            (0..n_warm_up).for_each(|k| put(Kind::Forward, chunk(k), micro(k)));
            for k in 0..n_forwards {
                let ahead = k + n_warm_up;
                if ahead < n_forwards {
                    put(Kind::Forward, chunk(ahead), micro(ahead));
                }
                put(Kind::Backward, v - 1 - chunk(k), micro(k));
            }
        }
        Ok(grid.finish(self, shape))
    }
}

impl Interleaved {
    fn fits(&self, shape: &Shape) -> Result<(), Unfit> {
        let Shape { depth, n_micro_batches, n_chunks, .. } = *shape;
        let most = usize::from(u16::MAX) / depth;
        if !(1..=most).contains(&n_chunks) {
            let reason = format!("{n_chunks} chunks of depth {depth} are not in 1..={most}");
            return Err(Unfit::new(self, reason, "2 chunks"));
        }
        shape.check_ops(self, depth * n_chunks)?;
        let d = depth as u32;
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
