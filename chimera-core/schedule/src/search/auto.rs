//! `auto`: the name of the schedule that a search finds on a placement.

use super::limits::within_limits;
use super::{Allowed, Found, Progress, Report, Search, Space, shortest};
use crate::costs::Costs;
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;
use crate::lower::{Hoist, Moves, Passes};
use crate::schedule::{MAX_DEPTH, Parameter, Scaling, Shape};
use std::fmt;

/// The name that stands for a search in place of a schedule.
pub const AUTO: &str = "auto";

/// The search in one line.
pub const ABOUT: &str =
    "the shortest order that a search finds within --memory-cap, --weight-copies and --max-chunks";

/// More ops would take the search longer than anyone waits.
const MAX_OPS: usize = 1 << 18;

/// The reasons why nothing can be found.
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

named_values! {
    /// Placements that can be searched, by name.
    pub enum Where: "placement" {
        /// All of the others within [`Search::weight_copies`] and [`Search::max_chunks`].
        Any = "any",
        /// Stage `s` on worker `s`.
        Line = "line",
        /// `chunks` stages per worker, one after another.
        Interleaved = "interleaved",
        /// Two stages per worker, there and back.
        V = "v",
        /// There and back `waves` times.
        Wave = "wave",
        /// Half of the `pipes` down, and half of them up, as in Chimera.
        Mirrored = "mirrored",
    }
}

impl Where {
    /// The parameters of a shape that the search reads there, except depth and micro-batches. It
    /// reads the scaling only to see whether micro-batches are halved.
    pub fn reads(self) -> &'static [Parameter] {
        match self {
            Where::Any | Where::Line | Where::V => &[Parameter::Scaling],
            Where::Interleaved => &[Parameter::Scaling, Parameter::Chunks],
            Where::Wave => &[Parameter::Scaling, Parameter::Waves],
            Where::Mirrored => &[Parameter::Scaling, Parameter::Pipes],
        }
    }

    fn placement(self, shape: &Shape) -> Result<Placement, AutoError> {
        let Shape { depth, n_micro_batches, n_pipes, n_chunks, n_waves, .. } = *shape;
        let (chunks, pipes) = match self {
            Where::Any | Where::Line => (1, 1),
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
            Where::Any | Where::Line => Placement::line(depth),
            Where::Interleaved => Placement::interleaved(depth, chunks),
            Where::V | Where::Wave => Placement::wave(depth, chunks),
            Where::Mirrored => Placement::mirrored(depth, pipes / 2),
        })
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
/// # Errors
/// [`AutoError`], if there is no such placement, no order keeps to the limit, or `passes` fix the
/// places of recomputations; and the errors of `costs`.
pub fn auto<C: Costs, E: From<AutoError>>(
    place: Where,
    shape: &Shape,
    passes: Passes,
    how: &Search,
    costs: &impl Fn(&Timetable) -> Result<C, E>,
    observe: &mut dyn FnMut(&Progress),
) -> Result<(Timetable, Report), E> {
    check_hoist(passes)?;
    let placement = place.placement(shape)?;
    if place == Where::Any {
        return any(None, shape, passes, how, costs, observe);
    }
    let allowed = Allowed {
        split_backwards: passes.split_backward,
        halved_micro_batches: shape.scaling == Scaling::Halving,
        recompute: passes.recompute,
    };
    let found = shortest(&placement, shape.n_micro_batches, allowed, how, costs, observe)?;
    reported(found, how)
}

/// Like [`auto`] on any placement, with one more placement to choose from.
///
/// # Errors
/// As [`auto`], and if the placement is on another number of workers.
pub fn auto_with<C: Costs, E: From<AutoError>>(
    own: &Placement,
    shape: &Shape,
    passes: Passes,
    how: &Search,
    costs: &impl Fn(&Timetable) -> Result<C, E>,
    observe: &mut dyn FnMut(&Progress),
) -> Result<(Timetable, Report), E> {
    check_hoist(passes)?;
    Where::Any.placement(shape)?;
    let (depth, n_workers) = (shape.depth, own.n_workers());
    if depth != n_workers {
        let reason =
            format!("the own placement is on {n_workers} workers: choose --depth {n_workers}");
        return Err(AutoError::Unfit(reason).into());
    }
    any(Some(own), shape, passes, how, costs, observe)
}

fn any<C: Costs, E: From<AutoError>>(
    own: Option<&Placement>,
    shape: &Shape,
    passes: Passes,
    how: &Search,
    costs: &impl Fn(&Timetable) -> Result<C, E>,
    observe: &mut dyn FnMut(&Progress),
) -> Result<(Timetable, Report), E> {
    let mut space = Space {
        halved_micro_batches: !how.whole_micro_batches,
        recompute: passes.recompute,
        moves: passes.moves == Moves::None,
        ..Space::within(shape.depth, how.weight_copies, how.max_chunks)
    };
    if let Some(own) = own {
        space.add("the own placement".into(), own.clone());
    }
    space.placements.retain(|(_, placement)| fits(placement, shape.n_micro_batches));
    let (found, across) = within_limits(&space, shape, how, costs, observe)?;
    let (timetable, report) = reported(found, how)?;
    Ok((timetable, Report { across: Some(across), ..report }))
}

fn check_hoist(passes: Passes) -> Result<(), AutoError> {
    if matches!(passes.hoist, Hoist::By(0) | Hoist::Auto) {
        return Ok(());
    }
    let reason = format!("it recomputes wherever is best: leave --hoist {} out", passes.hoist);
    Err(AutoError::Unfit(reason))
}

/// Returns true if a step on a placement has few enough ops for a search.
fn fits(placement: &Placement, n_micro_batches: u32) -> bool {
    placement.n_stages() * 3 * n_micro_batches as usize <= MAX_OPS
}

fn reported<E: From<AutoError>>(
    found: Option<Found>,
    how: &Search,
) -> Result<(Timetable, Report), E> {
    let Found { timetable, progress } =
        found.ok_or(AutoError::Memory(how.max_peak.unwrap_or(f64::INFINITY)))?;
    let like = (timetable.schedule != AUTO).then(|| timetable.schedule.clone());
    let report = Report { progress, like, across: None };
    Ok((Timetable { schedule: AUTO.into(), ..timetable }, report))
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
