//! TiMePReSt: n forwards, one backward, without a flush and with one version of the weights.

use super::pipedream::without_flush;
use super::{Parameter, Schedule, Shape, Unfit};
use crate::ir::timetable::Timetable;
use crate::ir::update::Update;

pub(super) struct TiMePReSt;

impl Schedule for TiMePReSt {
    facts! {
        name: "timeprest";
        about: "N forwards, one backward, without a flush; each pass reads the newest weights: one version of them";
        paper: "Dutta et al., TiMePReSt, arXiv 2410.14312";
        place: "nF1B scheduling";
        reads: [Parameter::Window];
    }

    /// PipeDream's order over steps: the forwards of a step's micro-batches, then one backward of
    /// them all.
    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        shape.check(self)?;
        let Ok(n_forwards) = u16::try_from(shape.n_micro_batches) else {
            let most = u16::MAX;
            let reason = format!("one backward takes at most {most} micro-batches");
            return Err(Unfit::new(self, reason, format!("{most} micro-batches")));
        };
        without_flush(self, shape, Update::Newest { n_steps: shape.window }, n_forwards)
    }
}
