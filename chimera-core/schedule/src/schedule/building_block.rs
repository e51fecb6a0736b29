//! The tool for schedules on a V of two chunks per worker that repeat one building block of six ops
//! every six slots (Qi et al., NeurIPS 2024, section 3).

use super::greedy::{Greedy, Limits};
use super::{Schedule, Shape, Unfit};
use crate::costs::UniformCosts;
use crate::ir::op::{Kind, Op};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;

/// Slots between one building block and the next.
pub(super) const PERIOD: u64 = 6;

/// The slots in which a worker begins the ops of its first micro-batch.
pub(super) struct Offsets {
    pub(super) forwards: [u64; 2],
    /// Input halves; each weight half takes the first free slot after its own input half.
    pub(super) inputs: [u64; 2],
}

/// The timetable of blocks with these offsets by worker, squeezed without holding more than
/// `max_peak` micro-batches: warm-up and drain have only parts of blocks. A tighter limit needs
/// less `slack`, so that no forward takes the room of a more urgent one.
pub(super) fn timetable(
    schedule: &dyn Schedule,
    shape: &Shape,
    max_peak: usize,
    slack: f64,
    offsets: impl Fn(u64) -> Offsets,
) -> Result<Timetable, Unfit> {
    shape.check(schedule)?;
    shape.check_chunks(schedule, 2, 1, "chunks")?;
    let d = shape.depth;
    let workers: Vec<Slots> = (0..d as u64).map(|w| Slots::of(&offsets(w))).collect();
    let slot = |op: &Op| {
        let chunk = op.stage.index() / d;
        let at = op.stage.index() % d;
        let slots = &workers[if chunk == 0 { at } else { d - 1 - at }];
        let first = match op.kind {
            Kind::Forward => slots.forwards,
            Kind::BackwardWeight => slots.weights,
            _ => slots.inputs,
        };
        (first[chunk] + PERIOD * u64::from(op.span.start)) as f64
    };
    let greedy = Greedy {
        placement: Placement::wave(d, 2),
        splits: true,
        costs: UniformCosts::new(1.0, 2.0, 0.0),
        limits: Limits { worker: Some(max_peak as f64), pipe: None },
    };
    greedy.squeezed(schedule, shape, slot, slack)
}

/// The slots of a worker's first block.
struct Slots {
    forwards: [u64; 2],
    inputs: [u64; 2],
    weights: [u64; 2],
}

impl Slots {
    fn of(offsets: &Offsets) -> Slots {
        let Offsets { forwards, inputs } = *offsets;
        let mut taken: Vec<u64> = [forwards, inputs].concat().iter().map(|s| s % PERIOD).collect();
        let mut weights = [0, 0];
        // The chunk whose input half comes first chooses first: the second one of the V.
        for chunk in [1, 0] {
            let free = |slot: &u64| !taken.contains(&(slot % PERIOD));
            let after = inputs[chunk] + 1..inputs[chunk] + 1 + PERIOD;
            weights[chunk] = after.clone().find(free).unwrap_or(after.end);
            taken.push(weights[chunk] % PERIOD);
        }
        Slots { forwards, inputs, weights }
    }
}
