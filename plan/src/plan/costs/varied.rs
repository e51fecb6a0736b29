//! Costs that vary randomly from op to op, as much as the profile saw them vary.
//!
//! Workers that wait for each other wait for the slowest. So a step takes longer than one whose ops
//! all take their usual time, and the more so the more a machine is shared with others.

use std::hash::{DefaultHasher, Hash, Hasher};

use chimera_core::analyze::{Timeline, simulate};
use chimera_core::costs::Costs;
use chimera_core::ids::WorkerId;
use chimera_core::op::Op;
use chimera_core::program::Program;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

/// The least and the most steps that are drawn. Long programs get few, since chance hardly changes one of their steps.
const N_DRAWS: [usize; 2] = [3, 21];
/// The most cells of all draws together, as long as the least number of draws is reached.
const MOST_CELLS: usize = 400_000;
/// Standard deviations of a normal distribution in half of the distance between its quartiles.
const DEVIATION_OF_SPREAD: f64 = 1.0 / 0.6745;

/// Simulates steps whose ops vary randomly, and returns them with the shortest first. Each op takes
/// its usual time multiplied by a factor whose logarithm is normal. The factor exceeds that of one
/// spread as often as the profile's measurements did. Draws are the same for the same program.
pub(crate) fn drawn<C: Costs>(program: &Program, usual: &C, longer: &C) -> Vec<Timeline> {
    let [least, most] = N_DRAWS;
    let n_cells: usize = program.rows().iter().map(Vec::len).sum();
    let n_draws = (MOST_CELLS / n_cells.max(1)).clamp(least, most) as u64;
    let draws = (0..n_draws).map(|draw| simulate(program, &Varied { usual, longer, draw }));
    let mut draws: Vec<Timeline> = draws.collect();
    draws.sort_by(|a, b| a.makespan().total_cmp(&b.makespan()));
    draws
}

/// The times of one draw.
struct Varied<'c, C> {
    usual: &'c C,
    /// Costs in which every op takes one spread longer.
    longer: &'c C,
    draw: u64,
}

impl<C: Costs> Varied<'_, C> {
    /// Draws the time of an op, or of a pair that begins with it.
    fn vary(&self, worker: WorkerId, op: &Op, [usual, longer]: [f64; 2]) -> f64 {
        if !(usual > 0.0 && longer > usual) {
            return usual;
        }
        let mut hasher = DefaultHasher::new();
        (self.draw, worker, op).hash(&mut hasher);
        let normal: f64 = StandardNormal.sample(&mut ChaCha8Rng::seed_from_u64(hasher.finish()));
        usual * (longer / usual).powf(DEVIATION_OF_SPREAD * normal)
    }
}

impl<C: Costs> Costs for Varied<'_, C> {
    fn base(&self) -> Option<&dyn Costs> {
        Some(self.usual)
    }

    fn op(&self, worker: WorkerId, op: &Op) -> f64 {
        let both = [self.usual, self.longer].map(|costs| costs.op(worker, op));
        self.vary(worker, op, both)
    }

    fn pair(&self, worker: WorkerId, a: &Op, b: &Op) -> f64 {
        let both = [self.usual, self.longer].map(|costs| costs.pair(worker, a, b));
        self.vary(worker, a, both)
    }

    fn move_occupies(&self, worker: WorkerId, op: &Op) -> f64 {
        self.usual.move_occupies(worker, op).min(self.op(worker, op))
    }
}

#[cfg(test)]
mod tests {
    use chimera_core::costs::UniformCosts;
    use chimera_core::lower::{Lowering, lower};
    use chimera_core::schedule::{Shape, find};

    use super::*;

    fn program(schedule: &str, depth: usize) -> Program {
        let timetable = find(schedule).unwrap().timetable(&Shape::new(depth, 8)).unwrap();
        lower(&timetable, &Lowering::default()).unwrap()
    }

    /// Returns the median time of a step with this spread of times, relative to the time without
    /// spread.
    fn longer_by(schedule: &str, depth: usize, spread: f64) -> f64 {
        let (usual, longer) = (UniformCosts::new(1.0, 2.0, 0.0), 1.0 + spread);
        let longer = UniformCosts::new(longer, 2.0 * longer, 0.0);
        let program = program(schedule, depth);
        let draws = drawn(&program, &usual, &longer);
        assert!(draws.is_sorted_by(|a, b| a.makespan() <= b.makespan()));
        draws[draws.len() / 2].makespan() / simulate(&program, &usual).makespan()
    }

    #[test]
    fn what_never_varies_takes_what_it_usually_does() {
        assert_eq!(longer_by("1f1b", 4, 0.0), 1.0);
    }

    /// A single worker waits for nobody: its long and short ops nearly compensate for each other.
    /// With several workers, the longest counts again and again.
    #[test]
    fn workers_that_wait_for_each_other_wait_for_the_longest() {
        let [alone, small, large] = [("1f1b", 1, 0.1), ("1f1b", 4, 0.02), ("1f1b", 4, 0.1)]
            .map(|(s, d, by)| longer_by(s, d, by));
        assert!((0.97..1.05).contains(&alone), "{alone}");
        assert!((1.0..1.04).contains(&small), "{small}");
        assert!(large > 1.05 && large > alone && large > small, "{large}");
    }

    #[test]
    fn draws_of_a_program_are_the_same_each_time() {
        let (usual, longer) = (UniformCosts::new(1.0, 2.0, 0.0), UniformCosts::new(1.2, 2.4, 0.0));
        let program = program("chimera", 4);
        assert_eq!(drawn(&program, &usual, &longer), drawn(&program, &usual, &longer));
    }
}
