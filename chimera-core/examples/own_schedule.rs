//! A custom schedule: 1F1B whose forwards run one micro-batch ahead, found by its name, proven,
//! drawn and simulated.

use std::error::Error;

use chimera_core::prelude::*;
use chimera_core::render::text;
use chimera_core::schedule::phases::{
    self,
    Next::{B, F},
    PhaseQueue, PhaseRow,
};
use chimera_core::schedule::{Citation, Unfit};

struct Ahead;

impl Schedule for Ahead {
    fn name(&self) -> &'static str {
        "ahead"
    }

    fn about(&self) -> &'static str {
        "1F1B with one forward more in its warm-up, which hides messages"
    }

    fn source(&self) -> Citation {
        Citation { paper: "none", place: "this example" }
    }

    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        shape.check(self)?;
        let (depth, n) = (shape.depth as u32, shape.n_micro_batches);
        Ok(phases::timetable(self, shape, Placement::line(shape.depth), |stage| {
            let ahead = depth - stage as u32; // one more than 1F1B has
            let row = PhaseRow::new([PhaseQueue::new(0, stage, 0..n)]);
            row.repeat(ahead, &[F(0)]).repeat(n, &[F(0), B(0)])
        }))
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let schedules = Schedules::built_in().with(&Ahead);
    let shape = Shape::new(4, 8);
    let mut makespans = Vec::new();
    for name in ["1f1b", "ahead"] {
        let program = lower(&schedules.find(name)?.timetable(&shape)?, &Lowering::default())?;
        let timeline = simulate(&program, &UniformCosts::new(1.0, 2.0, 0.5));
        println!("{name}, messages take half a forward:\n{}", text::timeline(&timeline));
        makespans.push(timeline.makespan());
    }
    assert!(makespans[1] < makespans[0], "{makespans:?}");
    Ok(())
}
