//! PipeDream-2BW: 1F1B without a flush, an update per step, two versions of the weights.

use super::pipedream::without_flush;
use super::{Parameter, Schedule, Shape, Unfit};
use crate::ir::timetable::Timetable;
use crate::ir::update::Update;

pub(super) struct PipeDream2Bw;

impl Schedule for PipeDream2Bw {
    facts! {
        name: "pipedream-2bw";
        about: "1F1B without a flush, an update per step with gradients one step old; two versions of the weights";
        paper: "Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021, \
                arXiv 2006.09503";
        place: "figure 3, section 3.1";
        reads: [Parameter::Window];
    }

    /// PipeDream's order. With N >= D the last backward of a step comes before the first forward of
    /// the step after the next, which is the first to read its update.
    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        if shape.n_micro_batches > 0 && (shape.n_micro_batches as usize) < shape.depth {
            let reason = format!(
                "with {} micro-batches a step and depth {}, two versions of the weights are not enough",
                shape.n_micro_batches, shape.depth
            );
            return Err(Unfit::new(self, reason, format!("{} micro-batches", shape.depth)));
        }
        without_flush(self, shape, Update::DoubleBuffer { n_steps: shape.window }, 1)
    }
}
