//! The units that micro-batches are cut into, and their costs.

use chimera_core::costs::UniformCosts;
use chimera_core::program::Program;
use chimera_core::timetable::Timetable;

/// The units that micro-batches are cut into.
#[derive(Clone, Copy)]
pub struct Units {
    n: u32,
    /// Whether they are slices of sequences rather than samples.
    are_slices: bool,
}

impl Units {
    /// Micro-batches that are not cut.
    pub const WHOLE: Units = Units { n: 1, are_slices: false };

    /// Returns the units of a program.
    pub fn of(program: &Program) -> Units {
        Units { n: program.units_per_micro(), are_slices: program.rules().n_slices() > 1 }
    }

    /// Returns the units of a timetable.
    pub fn of_timetable(timetable: &Timetable) -> Units {
        Units { n: timetable.units_per_micro, are_slices: timetable.is_sliced }
    }

    /// Divides the costs of a whole micro-batch into those of its units.
    pub fn cut(self, costs: UniformCosts) -> UniformCosts {
        if self.are_slices { costs.per_slices(self.n) } else { costs.per_units(self.n) }
    }

    /// Returns their number.
    pub fn n(self) -> u32 {
        self.n
    }

    /// Returns the number of slices of a sequence.
    pub fn n_slices(self) -> u32 {
        if self.are_slices { self.n } else { 1 }
    }

    /// Returns the size whose times a micro-batch of `size` samples is estimated from, and the
    /// factor between both. Times of slices are known only for all of a sequence together.
    pub fn timed(self, size: usize) -> (usize, f64) {
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
