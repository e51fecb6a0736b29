//! Shapes of schedules: depth, micro-batches, and parameters that some schedules read.

use super::{Schedule, Unfit};
use crate::ir::notation::named_values;

/// The most workers of a pipeline group.
pub const MAX_DEPTH: usize = 8192;
/// The most ops of a timetable.
pub(crate) const MAX_OPS: u64 = 1 << 24;
/// Memory of proof and simulation, measured at D = N = 512: 200 for a long row, and twice that
/// while rows grow.
const BYTES_PER_OP: f64 = 400.0;

/// The shape of a requested timetable. [`Schedule::reads`] lists the parameters that a schedule
/// reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Workers of the pipeline group, D.
    pub depth: usize,
    /// Micro-batches per step, N.
    pub n_micro_batches: u32,
    /// Number of pipes, 2f.
    pub n_pipes: usize,
    /// Stages per worker, v.
    pub n_chunks: usize,
    /// Scaling beyond D micro-batches.
    pub scaling: Scaling,
    /// Forwards, and then backwards, in turn, k.
    pub n_in_turn: u32,
    /// Waves of two chunks per worker.
    pub n_waves: usize,
    /// The most micro-batches in flight in each direction, K; `None` leaves it to the schedule.
    pub in_flight: Option<u32>,
    /// Steps without a flush between them, T.
    pub window: u32,
    /// Slices of the sequence, k.
    pub n_slices: u32,
}

impl Shape {
    /// D workers and N micro-batches; two pipes, chunks and waves, one op in turn, direct scaling,
    /// two steps between flushes, four slices.
    pub fn new(depth: usize, n_micro_batches: u32) -> Shape {
        Shape {
            depth,
            n_micro_batches,
            n_pipes: 2,
            n_chunks: 2,
            scaling: Scaling::Direct,
            n_in_turn: 1,
            n_waves: 2,
            in_flight: None,
            window: 2,
            n_slices: 4,
        }
    }

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

/// A part of a [`Shape`] that only some schedules read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parameter {
    /// `n_pipes`.
    Pipes,
    /// `n_chunks`.
    Chunks,
    /// `scaling`.
    Scaling,
    /// `n_in_turn`.
    InTurn,
    /// `n_waves`.
    Waves,
    /// `in_flight`.
    InFlight,
    /// `window`.
    Window,
    /// `n_slices`.
    Slices,
}

impl Parameter {
    /// All parameters with their names on the command line.
    pub const ALL: [(&'static str, Parameter); 8] = [
        ("pipes", Parameter::Pipes),
        ("chunks", Parameter::Chunks),
        ("scaling", Parameter::Scaling),
        ("in-turn", Parameter::InTurn),
        ("waves", Parameter::Waves),
        ("in-flight", Parameter::InFlight),
        ("window", Parameter::Window),
        ("slices", Parameter::Slices),
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        Parameter::ALL.iter().find(|(_, parameter)| *parameter == self).map_or("", |(name, _)| name)
    }

    /// Finds the parameter by its name on the command line.
    pub fn named(name: &str) -> Option<Parameter> {
        Parameter::ALL.into_iter().find(|(n, _)| *n == name).map(|(_, parameter)| parameter)
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
    use crate::schedule::SCHEDULES;

    /// `shape` with another value.
    fn other(parameter: Parameter, shape: Shape) -> Shape {
        match parameter {
            Parameter::Pipes => Shape { n_pipes: 4, ..shape },
            Parameter::Chunks => Shape { n_chunks: 3, ..shape },
            Parameter::Scaling => Shape { scaling: Scaling::Doubling, ..shape },
            Parameter::InTurn => Shape { n_in_turn: 2, ..shape },
            Parameter::Waves => Shape { n_waves: 3, ..shape },
            Parameter::InFlight => Shape { in_flight: Some(2), ..shape },
            Parameter::Window => Shape { window: 3, ..shape },
            Parameter::Slices => Shape { n_slices: 3, ..shape },
        }
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
            for (name, parameter) in Parameter::ALL {
                let changed = schedule.timetable(&other(parameter, shape));
                let is_read = schedule.timetable(&shape) != changed;
                let says_so = schedule.reads().contains(&parameter);
                assert_eq!(is_read, says_so, "{} and {name}", schedule.name());
            }
        }
    }
}
