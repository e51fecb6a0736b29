//! Seq1F1B: 1F1B over slices of the sequence, so that the pipeline fills and drains by slices.

use super::phases::Next::{B, F};
use super::phases::{self, PhaseQueue, PhaseRow};
use super::{Parameter, Schedule, Shape, Unfit};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;

pub(super) struct Seq1f1b;

/// More slices make smaller products and gain little.
const MOST_SLICES: u32 = 8;

impl Schedule for Seq1f1b {
    facts! {
        name: "seq1f1b";
        about: "1F1B over slices of the sequence; a k-th of its bubbles and nearly of its activations, for causal models";
        paper: "Sun et al., Seq1F1B, NAACL 2025, arXiv 2406.03488";
        place: "section 3.2, figure 3";
        reads: [Parameter::Slices];
        variants: ["", "--slices 2"];
    }

    fn parameters(&self, plain: Shape) -> Vec<(Shape, String)> {
        let slices = (2..=MOST_SLICES).filter(|n| *n != plain.n_slices);
        slices.map(|n| (Shape { n_slices: n, ..plain }, format!("--slices {n}"))).collect()
    }

    /// Stage `s` begins with `D-2-s + k` slices forward, then alternates one forward and one
    /// backward. Slices go forward in their order, and backward against it, since keys and values
    /// of a slice collect gradients from all later ones.
    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        shape.check(self)?;
        let (d, k, n) = (shape.depth as u32, shape.n_slices, shape.n_micro_batches);
        if k == 0 {
            return Err(Unfit::new(self, "0 slices hold no sequence", "1 slice"));
        }
        let Some(n_units) = n.checked_mul(k) else {
            return Err(Unfit::new(self, "there are too many slices", "fewer slices"));
        };
        shape.check_ops(self, shape.depth * k as usize)?;
        let sliced = phases::timetable(self, shape, Placement::line(shape.depth), |stage| {
            let forwards = (0..n_units).map(move |unit| (0, stage, unit));
            let descending = move |micro: u32| (micro * k..(micro + 1) * k).rev();
            let backwards = (0..n).flat_map(descending).map(move |unit| (0, stage, unit));
            PhaseRow::new([PhaseQueue::of(forwards, backwards)])
                .repeat(d - 1 - stage as u32 + k - 1, &[F(0)])
                .repeat(n_units, &[F(0), B(0)])
        });
        Ok(Timetable { units_per_micro: k, is_sliced: k > 1, ..sliced })
    }
}
