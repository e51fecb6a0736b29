//! `auto`: the schedule that a search finds on a placement.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use chimera_core::analyze::Costs;
use chimera_core::order::{Allowed, Found, Progress, Search, shortest};
use chimera_core::placement::Placement;
use chimera_core::schedule::{Scaling, Shape};
use chimera_core::timetable::Timetable;

/// The name that stands for a search wherever a schedule is named.
pub const AUTO: &str = "auto";

/// What the search does, in one line.
pub const ABOUT: &str = "the shortest order that a search finds on --placement under --memory-cap";

/// More ops would take the search longer than anyone waits.
const MAX_OPS: usize = 1 << 20;

/// Who holds which stage, by name.
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
    /// Half of the `pipes` down, half of them up, as Chimera.
    Mirrored,
}

impl Where {
    /// Every one with its name on the command line.
    pub const ALL: [(&'static str, Where); 5] = [
        ("line", Where::Line),
        ("interleaved", Where::Interleaved),
        ("v", Where::V),
        ("wave", Where::Wave),
        ("mirrored", Where::Mirrored),
    ];

    fn placement(self, shape: &Shape) -> Result<Placement> {
        let Shape { depth, n_micro_batches, n_pipes, n_chunks, n_waves, .. } = *shape;
        let (chunks, pipes) = match self {
            Where::Line => (1, 1),
            Where::Interleaved => (n_chunks, 1),
            Where::V => (2, 1),
            Where::Wave => (n_waves.saturating_mul(2), 1),
            Where::Mirrored => (1, n_pipes),
        };
        ensure!(
            depth > 0 && n_micro_batches > 0 && chunks > 0,
            "a shape needs at least one of all"
        );
        let is_mirrored = self == Where::Mirrored;
        ensure!(
            !is_mirrored || pipes >= 2 && pipes.is_multiple_of(2) && pipes <= 2 * depth,
            "mirrored pipes come in pairs, at most {depth} down and {depth} up: choose --pipes 2"
        );
        let n_ops =
            [chunks, n_micro_batches as usize, 3].iter().fold(depth, |n, x| n.saturating_mul(*x));
        ensure!(
            n_ops <= MAX_OPS,
            "{n_ops} ops are too many to search for their order, the most are {MAX_OPS}: choose fewer \
             --micro-batches, and repeat the step"
        );
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
        let known = Where::ALL.iter().find(|(n, _)| *n == name);
        known.map(|(_, place)| *place).ok_or_else(|| {
            let names = Where::ALL.map(|(n, _)| n).join(", ");
            format!("unknown placement `{name}`: choose one of {names}")
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
/// placement that keeps to the memory limit. Backwards are split if `splits`, micro-batches halved if
/// the shape's scaling is halving. `observe` is told now and then.
///
/// # Errors
/// If there is no such placement, or no order keeps to the limit.
pub fn auto<C: Costs>(
    place: Where,
    shape: &Shape,
    splits: bool,
    how: &Search,
    costs: impl Fn(&Timetable) -> Result<C>,
    mut observe: impl FnMut(&Progress),
) -> Result<Found> {
    let allowed = Allowed {
        split_backwards: splits,
        halved_micro_batches: shape.scaling == Scaling::Halving,
    };
    let (placement, n) = (place.placement(shape)?, shape.n_micro_batches);
    shortest(&placement, n, allowed, how, &costs, &mut observe)?.with_context(|| {
        let cap = how.max_peak.unwrap_or(f64::INFINITY);
        format!("no order keeps to the residuals of {cap} micro-batches: choose a --memory-cap of 1 or more")
    })
}

/// What a search came to, in one line.
pub fn report(progress: &Progress) -> String {
    let Progress { makespan, lower_bound, n_orders } = *progress;
    let short = |x: f64| (x * 1e6).round() / 1e6;
    let above = (makespan / lower_bound - 1.0) * 100.0;
    format!(
        "search: makespan {}, lower bound {}, {above:.1} % above it, {n_orders} order(s) tried",
        short(makespan),
        short(lower_bound),
    )
}
