//! `auto`: the schedule that a search finds on a placement, by name.

use std::fmt;
use std::str::FromStr;

use super::{Allowed, Found, Progress, Search, shortest};
use crate::costs::Costs;
use crate::ir::notation::by_name;
use crate::ir::notation::significant;
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;
use crate::lower::{Hoist, Passes};
use crate::schedule::{MAX_DEPTH, Parameter, Scaling, Shape};

/// The name that stands for a search in place of a schedule.
pub const AUTO: &str = "auto";

/// The search in one line.
pub const ABOUT: &str = "the shortest order that a search finds on --placement under --memory-cap";

/// More ops would take the search longer than anyone waits.
const MAX_OPS: usize = 1 << 18;

/// The reasons that nothing can be found.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum AutoError {
    /// The shape has no such placement.
    #[error("auto does not fit: {0}")]
    Unfit(String),
    /// No order keeps to the memory limit.
    #[error(
        "auto does not fit: no order was found that keeps to the activations of {0} micro-batches: choose a \
         larger --memory-cap, or more --search-time if it is 1 or more"
    )]
    Memory(f64),
}

/// The result of a search for a schedule.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// Makespan, bound and effort.
    pub progress: Progress,
    /// The schedule of the table, with its parameters, if nothing better was found.
    pub like: Option<String>,
}

/// Placements that can be searched, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Where {
    /// Stage `s` on worker `s`.
    Line,
    /// `chunks` stages per worker, one after another.
    Interleaved,
    /// Two stages per worker, there and back.
    V,
    /// There and back `waves` times.
    Wave,
    /// Half of the `pipes` down, and half of them up, as in Chimera.
    Mirrored,
}

impl Where {
    /// All placements with their names on the command line.
    pub const ALL: [(&'static str, Where); 5] = [
        ("line", Where::Line),
        ("interleaved", Where::Interleaved),
        ("v", Where::V),
        ("wave", Where::Wave),
        ("mirrored", Where::Mirrored),
    ];

    /// The parameters of a shape that the search reads there, except depth and micro-batches. It
    /// reads the scaling only to see whether micro-batches are halved.
    pub fn reads(self) -> &'static [Parameter] {
        match self {
            Where::Line | Where::V => &[Parameter::Scaling],
            Where::Interleaved => &[Parameter::Scaling, Parameter::Chunks],
            Where::Wave => &[Parameter::Scaling, Parameter::Waves],
            Where::Mirrored => &[Parameter::Scaling, Parameter::Pipes],
        }
    }

    fn placement(self, shape: &Shape) -> Result<Placement, AutoError> {
        let Shape { depth, n_micro_batches, n_pipes, n_chunks, n_waves, .. } = *shape;
        let (chunks, pipes) = match self {
            Where::Line => (1, 1),
            Where::Interleaved => (n_chunks, 1),
            Where::V => (2, 1),
            Where::Wave => (n_waves.saturating_mul(2), 1),
            Where::Mirrored => (1, n_pipes),
        };
        let unfit = |reason: String| Err(AutoError::Unfit(reason));
        if depth > MAX_DEPTH {
            return unfit(format!("depth {depth} is more than {MAX_DEPTH}"));
        }
        for (count, option) in [
            (depth, "--depth"),
            (n_micro_batches as usize, "--micro-batches"),
            (chunks, if self == Where::Wave { "--waves" } else { "--chunks" }),
            (pipes, "--pipes"),
        ] {
            if count == 0 {
                return unfit(format!("{option} is 0; nearest: 1"));
            }
        }
        let is_mirrored = self == Where::Mirrored;
        if is_mirrored && (!pipes.is_multiple_of(2) || pipes > 2 * depth) {
            return unfit(format!(
                "{pipes} mirrored pipes on {depth} worker(s): they come in pairs, at most {depth} down and \
                 {depth} up"
            ));
        }
        let size = |per_stage: usize| depth.saturating_mul(chunks).saturating_mul(per_stage);
        if size(1) > usize::from(u16::MAX) {
            return unfit(format!("{} stages are more than {}", size(1), u16::MAX));
        }
        let n_ops = size((n_micro_batches as usize).saturating_mul(3)).max(size(pipes));
        if n_ops > MAX_OPS {
            return unfit(format!(
                "{n_ops} ops are too many to search for their order, the most are {MAX_OPS}: search with \
                 fewer --micro-batches"
            ));
        }
        Ok(match self {
            Where::Line => Placement::line(depth),
            Where::Interleaved => Placement::interleaved(depth, chunks),
            Where::V | Where::Wave => Placement::wave(depth, chunks),
            Where::Mirrored => Placement::mirrored(depth, pipes / 2),
        })
    }
}

impl FromStr for Where {
    type Err = String;

    fn from_str(name: &str) -> Result<Where, String> {
        by_name("placement", name, &Where::ALL)
    }
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Where::ALL.iter().find(|(_, place)| place == self).map_or("", |(name, _)| name);
        f.pad(name)
    }
}

/// The shortest order found for a shape: never longer than any schedule of the table on the same
/// placement that keeps to the memory limit. If `passes` say so, backwards are split, and saved
/// activations are recomputed at the best places of the row. Micro-batches are halved if the
/// shape's scaling is halving. `observe` is called from time to time.
///
/// # Errors [`AutoError`], if there is no such placement, no order keeps to the limit, or `passes`
/// fix the places of recomputations; and the errors of `costs`.
pub fn auto<C: Costs, E: From<AutoError>>(
    place: Where,
    shape: &Shape,
    passes: Passes,
    how: &Search,
    costs: &impl Fn(&Timetable) -> Result<C, E>,
    observe: &mut dyn FnMut(&Progress),
) -> Result<(Timetable, Report), E> {
    if !matches!(passes.hoist, Hoist::By(0) | Hoist::Auto) {
        let reason = format!("it recomputes wherever is best: leave --hoist {} out", passes.hoist);
        return Err(AutoError::Unfit(reason).into());
    }
    let allowed = Allowed {
        split_backwards: passes.split_backward,
        halved_micro_batches: shape.scaling == Scaling::Halving,
        recompute: passes.recompute,
    };
    let placement = place.placement(shape)?;
    let n = shape.n_micro_batches;
    let found = shortest(&placement, n, allowed, how, costs, observe)?;
    let Found { timetable, progress } =
        found.ok_or(AutoError::Memory(how.max_peak.unwrap_or(f64::INFINITY)))?;
    let like = (timetable.schedule != AUTO).then(|| timetable.schedule.clone());
    Ok((Timetable { schedule: AUTO.into(), ..timetable }, Report { progress, like }))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress { makespan, lower_bound, n_orders } = self.progress;
        write!(f, "search: makespan {}, ", significant(makespan, 6))?;
        if !self.progress.has_bound() {
            f.write_str("no time to find a lower bound, ")?;
        } else {
            let above = if lower_bound > 0.0 { makespan / lower_bound - 1.0 } else { 0.0 };
            let bound = significant(lower_bound, 6);
            let above = (above * 100.0).max(0.0);
            write!(f, "lower bound {bound} on this placement, {above:.1} % above it, ")?;
        }
        write!(f, "{n_orders} order(s) tried")?;
        self.like.as_ref().map_or(Ok(()), |schedule| write!(f, "; it is {schedule}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_read_exactly_their_parameters() {
        let plain = Shape::new(4, 4);
        for (name, place) in Where::ALL {
            for (parameter, other) in [
                (Parameter::Pipes, Shape { n_pipes: 4, ..plain }),
                (Parameter::Chunks, Shape { n_chunks: 3, ..plain }),
                (Parameter::Waves, Shape { n_waves: 3, ..plain }),
                (Parameter::InTurn, Shape { n_in_turn: 3, ..plain }),
            ] {
                let is_read = place.placement(&plain) != place.placement(&other);
                assert_eq!(is_read, place.reads().contains(&parameter), "{name} and {parameter:?}");
            }
        }
    }
}
