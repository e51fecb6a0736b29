//! Schedules: each is a formula in a file, and all are listed in one table.
//!
//! A schedule writes a [`Timetable`]: placement and order of compute, nothing else. To add one,
//! write its file and its line in [`SCHEDULES`]. Checker, simulator, drawings, command line and
//! engine then know it.

/// The facts about a schedule of this crate that lists, help and searches show.
macro_rules! facts {
    (
        name: $name:literal;
        $(aliases: $aliases:expr;)?
        about: $about:literal;
        paper: $paper:literal;
        place: $place:literal;
        $(reads: $reads:expr;)?
        $(variants: $variants:expr;)?
    ) => {
        fn name(&self) -> &'static str {
            $name
        }

        $(fn aliases(&self) -> &'static [&'static str] {
            &$aliases
        })?

        fn about(&self) -> &'static str {
            $about
        }

        fn source(&self) -> $crate::schedule::Citation {
            $crate::schedule::Citation { paper: $paper, place: $place }
        }

        $(fn reads(&self) -> &'static [$crate::schedule::Parameter] {
            &$reads
        })?

        $(fn variants(&self) -> &'static [&'static str] {
            &$variants
        })?
    };
}

mod building_block;
mod chimera;
mod dapple;
mod dualpipe;
mod dualpipe_v;
mod gems;
mod gpipe;
pub mod greedy;
pub mod grid;
mod hanayo;
mod interleaved;
mod mixpipe;
mod parameter;
pub mod phases;
mod pipedream;
mod pipedream_2bw;
mod pipeoptim;
mod registry;
mod seq1f1b;
mod shape;
mod timeprest;
mod v_half;
mod v_min;
mod zb_h1;
mod zb_h2;
mod zb_v;

use std::fmt;

pub use parameter::{NUMBERS, Number, Parameter, Shape};
pub use registry::{SCHEDULES, Schedules, UnknownSchedule, find};
pub(crate) use shape::MAX_OPS;
pub use shape::{MAX_DEPTH, Scaling};

use crate::ir::timetable::Timetable;

/// A formula for timetables.
pub trait Schedule: Sync {
    /// Name of the schedule on the command line, in lower case.
    fn name(&self) -> &'static str;

    /// Other names of the schedule, including PyTorch's. Names are case-insensitive.
    fn aliases(&self) -> &'static [&'static str] {
        &[]
    }

    /// A description in one line.
    fn about(&self) -> &'static str;

    /// The publication that defines the schedule.
    fn source(&self) -> Citation;

    /// The parameters of a [`Shape`] that the schedule reads, except depth and micro-batches.
    fn reads(&self) -> &'static [Parameter] {
        &[]
    }

    /// Variants of the schedule in comparisons, as command-line options.
    fn variants(&self) -> &'static [&'static str] {
        &[""]
    }

    /// Shapes that differ from `plain` in a parameter that only this schedule reads, each with the
    /// options for it. A search for an order starts from them and from `plain`.
    fn parameters(&self, _plain: Shape) -> Vec<(Shape, String)> {
        Vec::new()
    }

    /// The timetable for one shape.
    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit>;
}

/// The publication of a schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Citation {
    /// Authors, title, venue.
    pub paper: &'static str,
    /// The figure, section or algorithm that defines it.
    pub place: &'static str,
}

/// A shape that a schedule does not support.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct Unfit {
    /// The schedule.
    pub schedule: &'static str,
    /// The reason.
    pub reason: String,
    /// The nearest shape that fits; empty if there is none.
    pub nearest: String,
}

impl Unfit {
    /// The reason that a schedule does not fit, and the nearest shape that does.
    pub fn new(
        schedule: &dyn Schedule,
        reason: impl Into<String>,
        nearest: impl Into<String>,
    ) -> Unfit {
        Unfit { schedule: schedule.name(), reason: reason.into(), nearest: nearest.into() }
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} does not fit: {}", self.schedule, self.reason)?;
        if self.nearest.is_empty() { Ok(()) } else { write!(f, "; nearest: {}", self.nearest) }
    }
}
