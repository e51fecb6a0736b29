//! MixPipe: Chimera's placement with a chosen number of micro-batches in flight in each direction.

use super::greedy::{Greedy, Limits};
use super::{Parameter, Schedule, Shape, Unfit};
use crate::costs::UniformCosts;
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;

pub(super) struct MixPipe;

/// Shapes with more forwards are not listed, one parameter at a time.
const MOST_FORWARDS: u32 = 1 << 14;

impl Schedule for MixPipe {
    facts! {
        name: "mixpipe";
        about: "Chimera's two pipes with K micro-batches on their way in each, more of them for fewer bubbles";
        paper: "Zhang et al., MixPipe, DAC 2023";
        place: "section III";
        reads: [Parameter::InFlight];
    }

    /// From half to twice the number of workers.
    fn parameters(&self, plain: Shape) -> Vec<(Shape, String)> {
        let d = plain.depth as u32;
        if plain.n_micro_batches.saturating_mul(d) > MOST_FORWARDS {
            return Vec::new();
        }
        let flown = |k| (Shape { in_flight: Some(k), ..plain }, format!("--in-flight {k}"));
        [d / 2, d, d + d / 2, 2 * d].map(flown).into()
    }

    /// Backwards first; then squeezed, which removes the holes of the steady state. A worker holds
    /// up to D micro-batches, or one and a half times as many as are in flight in one direction.
    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        shape.check(self)?;
        let in_flight = f64::from(shape.in_flight.unwrap_or(shape.depth as u32 / 2 + 1));
        if in_flight < 1.0 {
            return Err(Unfit::new(self, "nothing may be on its way", "1 in flight"));
        }
        let greedy = Greedy {
            placement: Placement::mirrored(shape.depth, 1),
            splits: false,
            costs: UniformCosts::new(1.0, 2.0, 0.0),
            limits: Limits {
                worker: Some((shape.depth as f64).max((1.5 * in_flight).floor())),
                pipe: Some(in_flight),
            },
        };
        let key = greedy.backwards_first(shape);
        greedy.squeezed(self, shape, key, f64::INFINITY)
    }
}
