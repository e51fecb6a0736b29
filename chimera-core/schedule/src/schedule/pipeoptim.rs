//! PipeOptim: 1F1B without a flush, whose forwards read predicted weights.

use super::pipedream::without_flush;
use super::{Parameter, Schedule, Shape, Unfit};
use crate::ir::timetable::Timetable;
use crate::ir::update::Update;

pub(super) struct PipeOptim;

impl Schedule for PipeOptim {
    facts! {
        name: "pipeoptim";
        about: "1F1B without a flush, an update per micro-batch; forwards read predicted weights, backwards the newest";
        paper: "Guan et al., PipeOptim, 2023, arXiv 2312.00839";
        place: "weight prediction ahead of the forward pass";
        reads: [Parameter::Window];
    }

    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        without_flush(self, shape, Update::Predicted { n_steps: shape.window }, 1)
    }
}
