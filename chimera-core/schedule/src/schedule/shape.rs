//! Checks of a shape that several schedules share, and the scaling.

use super::{Schedule, Shape, Unfit};

/// The most workers of a pipeline group.
pub const MAX_DEPTH: usize = 8192;
/// The most ops of a timetable.
pub(crate) const MAX_OPS: u64 = 1 << 24;
/// Memory of proof and simulation, measured at D = N = 512: 200 for a long row, and twice that
/// while rows grow.
const BYTES_PER_OP: f64 = 400.0;

impl Shape {
    /// Refuses shapes that no schedule supports.
    pub fn check(&self, schedule: &dyn Schedule) -> Result<(), Unfit> {
        if !(1..=MAX_DEPTH).contains(&self.depth) {
            let reason = format!("depth {} is not in 1..={MAX_DEPTH}", self.depth);
            let nearest = if self.depth > 0 { format!("depth {MAX_DEPTH}") } else { String::new() };
            return Err(Unfit::new(schedule, reason, nearest));
        }
        if self.n_micro_batches == 0 {
            let reason = "a step needs at least one micro-batch";
            return Err(Unfit::new(schedule, reason, "1 micro-batch"));
        }
        self.check_ops(schedule, self.depth)
    }

    /// The chunks per worker for `count` times `each`. Refuses a count, named `what` on the command
    /// line, that gives too many stages.
    pub(super) fn check_chunks(
        &self,
        schedule: &dyn Schedule,
        count: usize,
        each: usize,
        what: &str,
    ) -> Result<usize, Unfit> {
        let most = usize::from(u16::MAX) / (self.depth * each);
        if !(1..=most).contains(&count) {
            let reason = format!("{count} {what} of depth {} are not in 1..={most}", self.depth);
            return Err(Unfit::new(schedule, reason, format!("--{what} {}", count.clamp(1, most))));
        }
        self.check_ops(schedule, self.depth * count * each)?;
        Ok(count * each)
    }

    /// Refuses an odd depth, since mirrored pipes need pairs of workers.
    pub(super) fn check_even_depth(&self, schedule: &dyn Schedule) -> Result<(), Unfit> {
        let depth = self.depth;
        if depth.is_multiple_of(2) {
            return Ok(());
        }
        let nearest = if depth > 2 {
            format!("depth {} or {}", depth - 1, depth + 1)
        } else {
            "depth 2".to_string()
        };
        let reason = format!("depth {depth} is odd, and mirrored pipes need pairs of workers");
        Err(Unfit::new(schedule, reason, nearest))
    }

    /// Keeps a typing error from filling the memory. The largest published job has some hundred
    /// thousand ops.
    pub(super) fn check_ops(&self, schedule: &dyn Schedule, n_stages: usize) -> Result<(), Unfit> {
        let n_ops = (n_stages as u64).saturating_mul(2 * u64::from(self.n_micro_batches));
        if n_ops > MAX_OPS {
            let gib = |n_ops: u64| (n_ops as f64 * BYTES_PER_OP / f64::from(1 << 30)).round();
            let reason = format!(
                "{n_ops} ops are more than {MAX_OPS}: they would take about {} GiB of memory rather than {}",
                gib(n_ops),
                gib(MAX_OPS)
            );
            let nearest = match MAX_OPS / 2 / n_stages as u64 {
                0 => format!("at most {} stages or slices of stages", MAX_OPS / 2),
                _ => Shape::micro_batches_within(MAX_OPS / 2, n_stages),
            };
            return Err(Unfit::new(schedule, reason, nearest));
        }
        Ok(())
    }

    /// The number of micro-batches that `n_stages` stages can process with at most `n_forwards`
    /// forwards, as text.
    pub(super) fn micro_batches_within(n_forwards: u64, n_stages: usize) -> String {
        format!("at most {} micro-batches", n_forwards / n_stages as u64)
    }

    /// Refuses fewer micro-batches than 2D.
    pub(super) fn check_twice_depth(&self, schedule: &dyn Schedule) -> Result<(), Unfit> {
        let n = self.n_micro_batches;
        let least = 2 * self.depth as u32;
        if n < least {
            let reason = format!("{n} micro-batches are less than 2D = {least}");
            return Err(Unfit::new(schedule, reason, format!("{least} micro-batches")));
        }
        Ok(())
    }
}

named_values! {
    /// The ways in which Chimera scales beyond D micro-batches (Li & Hoefler, SC'21, section 3.5).
    pub enum Scaling: "scaling" {
        /// Units of D micro-batches one after another; each fills the bubbles of the one before.
        Direct = "direct",
        /// Two forwards run where the plain unit has one, so that a forward slot costs as much as a
        /// backward. This needs twice the activation memory.
        Doubling = "doubling",
        /// A forward takes a whole micro-batch and each backward half of one.
        Halving = "halving",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Parameter, SCHEDULES};

    /// `shape` with another value.
    fn other(parameter: Parameter, shape: Shape) -> Shape {
        let number = match parameter {
            Parameter::Scaling => return Shape { scaling: Scaling::Doubling, ..shape },
            Parameter::Pipes => 4,
            Parameter::InTurn | Parameter::InFlight => 2,
            _ => 3,
        };
        shape.with(parameter, Some(number))
    }

    #[test]
    fn no_depth_is_too_large_to_be_refused() {
        for schedule in SCHEDULES {
            let made = schedule.timetable(&Shape::new(usize::MAX, 8));
            assert!(made.is_err(), "{}", schedule.name());
        }
    }

    #[test]
    fn schedules_read_exactly_their_parameters() {
        let shape = Shape::new(4, 8);
        for schedule in SCHEDULES {
            for &(name, parameter) in Parameter::ALL {
                let changed = schedule.timetable(&other(parameter, shape));
                let is_read = schedule.timetable(&shape) != changed;
                let says_so = schedule.reads().contains(&parameter);
                assert_eq!(is_read, says_so, "{} and {name}", schedule.name());
            }
        }
    }
}
