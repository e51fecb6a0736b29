//! Growth of costs along a sequence that is cut into slices.

/// The extra time of slices relative to the mean slice, by kind of op, per whole micro-batch: slice
/// `i` of `n` takes `(2 i + 1 - n) / n` of this more. The tokens of a slice attend to all earlier
/// ones, so attention takes almost no time in the first slice and twice the mean in the last.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct SliceGrowth {
    /// A forward.
    pub forward: f64,
    /// The input half of a backward.
    pub input: f64,
    /// The weight half of a backward.
    pub weight: f64,
    /// A recomputation.
    pub recompute: f64,
}

impl SliceGrowth {
    /// All slices take the same time, or there are none.
    pub const NONE: SliceGrowth =
        SliceGrowth { forward: 0.0, input: 0.0, weight: 0.0, recompute: 0.0 };

    pub(super) fn share(self, share: f64) -> SliceGrowth {
        let SliceGrowth { forward, input, weight, recompute } = self;
        let [forward, input, weight, recompute] =
            [forward, input, weight, recompute].map(|kind| kind * share);
        SliceGrowth { forward, input, weight, recompute }
    }

    pub(super) fn and(self, next: SliceGrowth) -> SliceGrowth {
        SliceGrowth {
            forward: self.forward + next.forward,
            input: self.input + next.input,
            weight: self.weight + next.weight,
            recompute: self.recompute + next.recompute,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::{Costs, UniformCosts};
    use crate::ir::ids::{PipeId, StageId, WorkerId};
    use crate::ir::op::{Kind, Op, Span};

    #[test]
    fn slices_grow_along_their_sequence_and_take_all_of_it_together() {
        let growth = SliceGrowth { forward: 2.0, input: 4.0, ..SliceGrowth::NONE };
        let costs = UniformCosts { growth, ..UniformCosts::new(8.0, 16.0, 0.0) };
        let takes = |costs: UniformCosts, kind, start, len| {
            let op = Op::new(kind, PipeId(0), StageId(0), 0);
            costs.op(WorkerId(0), &Op { span: Span { start, len }, ..op })
        };
        let sliced = costs.per_slices(4);
        // The second micro-batch costs as much as the first.
        for first in [0, 4] {
            let slices = [0, 1, 2, 3].map(|slice| takes(sliced, Kind::Forward, first + slice, 1));
            assert_eq!(slices, [1.625, 1.875, 2.125, 2.375]);
            assert_eq!(takes(sliced, Kind::Forward, first, 2), 1.625 + 1.875);
            assert_eq!(takes(sliced, Kind::Forward, first, 4), 8.0);
        }
        assert_eq!(takes(sliced, Kind::BackwardWeight, 3, 1), 2.0);
        assert_eq!(takes(sliced, Kind::Backward, 3, 1), 4.0 + 0.75);
        assert_eq!(takes(costs.per_units(4), Kind::Forward, 3, 1), 2.0);
        // Two stages merged, and then halved.
        let both = sliced.and(sliced).share(0.5);
        assert_eq!(takes(both, Kind::Forward, 3, 1), 2.375);
    }
}
