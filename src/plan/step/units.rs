//! What micro-batches are cut into, where costs are taken of them.

use chimera_core::costs::UniformCosts;
use chimera_core::program::Program;
use chimera_core::timetable::Timetable;

/// What micro-batches are cut into.
#[derive(Clone, Copy)]
pub(crate) struct Units {
    n: u32,
    /// Slices of sequences, or else samples.
    are_slices: bool,
}

impl Units {
    /// They are not cut.
    pub(crate) const WHOLE: Units = Units { n: 1, are_slices: false };

    pub(crate) fn of(program: &Program) -> Units {
        Units { n: program.units_per_micro(), are_slices: program.rules().n_slices() > 1 }
    }

    pub(crate) fn of_timetable(timetable: &Timetable) -> Units {
        Units { n: timetable.units_per_micro, are_slices: timetable.is_sliced }
    }

    /// Costs of a whole micro-batch, divided for them.
    pub(crate) fn cut(self, costs: UniformCosts) -> UniformCosts {
        if self.are_slices { costs.per_slices(self.n) } else { costs.per_units(self.n) }
    }

    /// How many there are.
    pub(crate) fn n(self) -> u32 {
        self.n
    }

    /// Slices of a sequence.
    pub(crate) fn n_slices(self) -> u32 {
        if self.are_slices { self.n } else { 1 }
    }

    /// Samples of which times are taken, and how many times so many a micro-batch of `size` is: of slices the times are known
    /// of all together.
    pub(crate) fn timed(self, size: usize) -> (usize, f64) {
        if self.are_slices {
            (size, 1.0)
        } else {
            ((size / self.n as usize).max(1), f64::from(self.n))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_timed_by_themselves_and_slices_together() {
        let units = |n, are_slices| Units { n, are_slices };
        assert_eq!(units(4, true).timed(1), (1, 1.0));
        assert_eq!(units(2, false).timed(6), (3, 2.0));
        assert_eq!(Units::WHOLE.timed(5), (5, 1.0));
    }
}
