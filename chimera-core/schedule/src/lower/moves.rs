//! Passes that move saved activations out of the memory of workers that hold too many: to their
//! hosts (PipeOffload, Wan et al., 2025), or to workers that hold few (BPipe, Kim et al., 2023).

mod partners;
mod row;

use self::partners::Partners;
use self::row::{MovingRow, written};
use super::{Lowering, dry_run};
use crate::activation_memory::ActivationMemory;
use crate::analyze::{Refusal, Timeline};
use crate::costs::{Costs, UniformCosts, is_shorter};
use crate::effects::Rules;
use crate::ir::ids::WorkerId;
use crate::ir::op::Cell;
use crate::ir::timetable::Timetable;

/// The memory that takes saved activations for which a worker has no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Moves {
    /// Activations are not moved.
    #[default]
    None,
    /// The memory of the worker's host: [`offload`].
    Offload,
    /// The worker at the other end of the pipeline: [`bpipe`].
    Bpipe,
}

impl Moves {
    /// The moves that these options request. Sharing memory takes precedence over the host's.
    pub fn of(bpipe: bool, offload: Offloading) -> Moves {
        match (bpipe, offload) {
            (true, _) => Moves::Bpipe,
            (false, Offloading::Auto) => Moves::Offload,
            (false, Offloading::None) => Moves::None,
        }
    }
}

named_values! {
    /// The policy for offloading saved activations to the host.
    pub enum Offloading: "offload" {
        /// No activations.
        None = "none",
        /// As many as a memory limit requires, or without a limit as many as cost no time.
        Auto = "auto",
    }
}

/// Offloads saved activations until no worker holds more than [`Lowering::max_peak`] or, without
/// that, as many as cost no time at `costs`. They go to the memory of the host after their forward,
/// and come back before their backward. Activations with the latest backward go first.
///
/// A worker that cannot keep to the limit exceeds it as little as it can.
///
/// # Errors
/// If the timetable is not sound.
pub fn offload(
    timetable: Timetable,
    how: &Lowering,
    costs: &impl Costs,
) -> Result<Timetable, Refusal> {
    let before = dry_run(&timetable, costs)?;
    let offloaded = |most: f64| {
        let rows = rows(&timetable, |_| most);
        Timetable { rows: rows.iter().map(written).collect(), ..timetable.clone() }
    };
    if let Some(most) = how.max_peak {
        return Ok(offloaded(most));
    }
    // More memory never makes a step longer, so the least memory that costs no time is found by
    // bisection.
    let makespan = before.timeline.makespan();
    let steps = (before.objective.peak * f64::from(timetable.units_per_micro)).ceil() as u32;
    let most = |step: u32| f64::from(step) / f64::from(timetable.units_per_micro);
    let mut too_few = 0;
    let mut enough = steps;
    while enough - too_few > 1 {
        let middle = too_few.midpoint(enough);
        let moved = dry_run(&offloaded(most(middle)), costs);
        let fits = moved.is_ok_and(|moved| !is_shorter(makespan, moved.timeline.makespan()));
        if fits { enough = middle } else { too_few = middle }
    }
    Ok(offloaded(most(enough)))
}

/// Assumed times of moves when the ops of partners are put in order, relative to the real ones.
const PACES: [f64; 4] = [1.0, 0.5, 0.25, 0.0];

/// A timetable in which workers at both ends of the pipeline share their memory: w and D-1-w hold
/// equally many saved activations, up to one. The worker that would hold more sends the excess to
/// the other, and gets it back before its backward. 1F1B then holds at most `ceil((D + 2) / 2)`
/// micro-batches. `costs` determine when a worker could take them in. The resulting order may be
/// unsafe if moves are slow, so orders for faster moves are tried too, and the shortest is used.
/// Without times there is no order by time: if no order is safe, the order is that of ops that take
/// equally long.
///
/// # Errors
/// If the timetable is not sound, or none of the orders is.
pub fn bpipe(timetable: Timetable, costs: &impl Costs) -> Result<Timetable, Refusal> {
    let timeline = dry_run(&timetable, costs)?.timeline;
    let peaks = peaks(&timetable);
    let last = peaks.len() - 1;
    let unit = 1.0 / f64::from(timetable.units_per_micro);
    // Activations in transit count at both ends.
    let share = |w: usize| ((peaks[w] + peaks[last - w] + unit) / 2.0 / unit - 1e-6).ceil() * unit;
    let rows = rows(&timetable, |worker| {
        let peak = peaks[worker.index()];
        let partner = peaks[last - worker.index()];
        let share = share(worker.index());
        // A worker that holds less has nothing to give, and a pair that holds equally much gains
        // nothing.
        if peak > partner && peak > share { share } else { peak }
    });
    let rules = &Rules::of(&timetable);
    let memory = &memory(&timetable);
    let moved = |timeline: &Timeline, pace: f64| {
        let partners = Partners { rules, memory, timeline, costs, pace };
        let moved = Timetable { rows: partners.keep(&rows), ..timetable.clone() };
        dry_run(&moved, costs).map(|moving| (moving.timeline.makespan(), moved))
    };
    let takes = |moved: &Result<(f64, Timetable), Refusal>| {
        moved.as_ref().map_or(f64::INFINITY, |(makespan, _)| *makespan)
    };
    let by_costs = PACES.map(|pace| moved(&timeline, pace)).into_iter();
    let shortest = match by_costs.min_by(|a, b| takes(a).total_cmp(&takes(b))) {
        Some(Ok(shortest)) => Ok(shortest),
        _ => moved(&dry_run(&timetable, &UniformCosts::EQUAL)?.timeline, 0.0),
    };
    shortest.map(|(_, moved)| moved)
}

/// The rows of a timetable with workers that hold no more than `most` allows.
fn rows(timetable: &Timetable, most: impl Fn(WorkerId) -> f64) -> Vec<MovingRow> {
    let rules = Rules::of(timetable);
    let memory = memory(timetable);
    let moving = |(worker, row): (WorkerId, &Vec<Cell>)| {
        MovingRow::new(worker, row, most(worker), (&rules, &memory))
    };
    (0..).map(WorkerId).zip(&timetable.rows).map(moving).collect()
}

/// The most that each worker holds.
fn peaks(timetable: &Timetable) -> Vec<f64> {
    let rules = Rules::of(timetable);
    let mut memory = memory(timetable);
    for (worker, row) in (0..).map(WorkerId).zip(&timetable.rows) {
        for cell in row {
            memory.run(worker, cell, &rules.cell_effects(cell), &rules);
        }
    }
    memory.peaks()
}

fn memory(timetable: &Timetable) -> ActivationMemory {
    ActivationMemory::new(&timetable.placement, timetable.units_per_micro)
}
