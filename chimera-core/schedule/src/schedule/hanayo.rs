//! Hanayo: one pipe that goes back and forth over the workers in waves.

use super::greedy::{Greedy, Limits};
use super::{Parameter, Schedule, Shape, Unfit};
use crate::costs::UniformCosts;
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;

pub(super) struct Hanayo;

impl Schedule for Hanayo {
    facts! {
        name: "hanayo";
        about: "2W chunks per worker in W waves; Chimera's bubbles with one copy of the weights";
        paper: "Liu et al., Hanayo, SC 2023, arXiv 2308.15762";
        place: "figure 6";
        reads: [Parameter::Waves];
        variants: ["", "--waves 1"];
    }

    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        shape.check(self)?;
        let n_chunks = shape.check_chunks(self, shape.n_waves, 2, "waves")?;
        let greedy = Greedy {
            placement: Placement::wave(shape.depth, n_chunks),
            splits: false,
            costs: UniformCosts::new(1.0, 2.0, 0.0),
            limits: Limits::default(),
        };
        let key = greedy.backwards_first(shape);
        greedy.timetable(self, shape, key)
    }
}
