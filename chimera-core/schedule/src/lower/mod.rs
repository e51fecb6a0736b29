//! Lowering: from a timetable to a [`Program`], by a sequence of passes and then the proof.
//!
//! [`Passes`] make a timetable from a timetable, for any schedule. [`lower`] is the only way to a
//! `Program`, so an unproven one cannot be run.

mod border;
mod combine;
mod fill;
mod freeze;
mod hoist;
mod memory;
mod messages;
mod moves;
mod narrow;
mod recompute;
mod shard;
mod split;
mod sync;

pub use border::{Border, free_border};
pub use combine::{NotCombinable, combine};
pub use fill::fill;
pub use freeze::{forward_only, freeze};
pub use hoist::Hoist;
pub use moves::{Moves, Offloading, bpipe, offload};
pub use narrow::{Programs, TooNarrow, narrow};
pub use recompute::{Recompute, recompute};
pub use split::split_backward;
pub use sync::Sync;

use crate::analyze::{
    Refusal, Savings, Timeline, check, peak_kept, simulate, simulate_compute, structure,
};
use crate::costs::{Costs, UniformCosts};
use crate::effects::Rules;
use crate::ir::ids::StageId;
use crate::ir::op::Kind;
use crate::ir::timetable::Timetable;
use crate::ir::update::Update;
use crate::order::OrderObjective;
use crate::program::Program;

/// Options of lowering a timetable.
#[derive(Clone, PartialEq, Debug)]
pub struct Lowering {
    /// The start of reductions. Asynchronous schedules always reduce right before each update; with
    /// [`Sync::InBackward`] they send the last gradient afterwards.
    pub sync: Sync,
    /// Optimizer steps wait for the step sync, in which all workers agree on the gradient norm and
    /// on its being finite. Without it, and in asynchronous schedules, each bucket is updated as
    /// soon as its gradients are in. In a window of steps without a border all workers agree at its
    /// end, and [have a program](Program::bordered) for steps whose updates must wait.
    pub barrier: bool,
    /// Sets of stages that share tensors; each is a bucket over the workers of all of them. A stage
    /// is in one set at most, and shares all of its tied tensors (`Param::tied` of the engine) with
    /// all stages of the set.
    pub tied: Vec<Vec<StageId>>,
    /// The most micro-batches with activations that a worker may hold at once.
    pub max_peak: Option<f64>,
    /// Maximum stages with whole weights on a worker at once, except where an op needs more; 0 if
    /// weights are not sharded.
    pub whole_stages: u32,
}

impl Default for Lowering {
    fn default() -> Lowering {
        let sync = Sync::EagerOpt;
        Lowering { sync, barrier: true, tied: Vec::new(), max_peak: None, whole_stages: 0 }
    }
}

/// Adds messages, reductions and optimizer steps to a timetable, and proves the result. Workers
/// idle as if all ops took equally long, and messages no time: see [`lower_at`].
///
/// # Errors
/// If the timetable is not sound.
pub fn lower(timetable: &Timetable, how: &Lowering) -> Result<Program, Refusal> {
    lower_at(timetable, how, &UniformCosts::EQUAL)
}

/// Like [`lower`], for ops and messages at `costs`: the order of reductions and, with
/// [`Sync::EagerOpt`], their starts depend on when workers end and where they idle.
///
/// # Errors
/// If the timetable is not sound.
pub fn lower_at(
    timetable: &Timetable,
    how: &Lowering,
    costs: &impl Costs,
) -> Result<Program, Refusal> {
    let window = structure::check(timetable, &how.tied)?;
    let rules = Rules::of(timetable);
    let (rows, channels) = messages::insert(timetable, &rules);
    let mut program = Program {
        schedule: timetable.schedule.clone(),
        placement: timetable.placement.clone(),
        n_micro_batches: timetable.n_micro_batches,
        units_per_micro: timetable.units_per_micro,
        window,
        rules,
        channels,
        buckets: sync::buckets(&timetable.placement, &how.tied, &window),
        rows,
        channel_bound: 0,
        peaks: Vec::new(),
        weight_versions: Vec::new(),
        has_barrier: how.barrier && window.update() == Update::Flush,
        bordered: None,
    };
    if how.barrier && window.update().is_borderless() {
        let step = lower_at(&border::first_step(timetable), how, costs)?;
        program.bordered = Some(Box::new(step));
    }
    let mut ends = sync::Ends::new(&program, how.sync);
    simulate_compute(&program, costs, |event| ends.add(&event))?;
    sync::insert(&mut program, &ends, how);
    let mut proof = check::prove(&program, how.max_peak)?;
    if how.whole_stages > 0 {
        shard::insert(&mut program, how.whole_stages as usize, costs)?;
        proof = check::prove(&program, how.max_peak)?;
    }
    program.channel_bound = proof.channel_bound;
    program.peaks = proof.peaks;
    program.weight_versions = proof.weight_versions;
    Ok(program)
}

/// The passes over compute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passes {
    /// The values that every forward keeps for its backward.
    pub recompute: Recompute,
    /// The place of recomputations.
    pub hoist: Hoist,
    /// Whether backwards are split.
    pub split_backward: bool,
    /// Number of steps without a border between them, see [`free_border`]; `None` if all workers
    /// end each step together.
    pub free_border: Option<u32>,
    /// The memory for saved activations that a worker has no room for.
    pub moves: Moves,
}

impl Default for Passes {
    fn default() -> Passes {
        Passes {
            recompute: Recompute::None,
            hoist: Hoist::By(0),
            split_backward: false,
            free_border: None,
            moves: Moves::None,
        }
    }
}

impl Passes {
    /// The requested savings of activation memory.
    pub fn savings(self) -> Savings {
        Savings {
            recomputes: self.recompute != Recompute::None,
            offloads: self.moves == Moves::Offload,
            shares: self.moves == Moves::Bpipe,
        }
    }

    /// Returns true if they move recomputations and make none. (A timetable from a file may have
    /// recomputations of its own, which can wait for their gradients.)
    pub(crate) fn move_nothing(self) -> bool {
        self.recompute == Recompute::None && !matches!(self.hoist, Hoist::By(0) | Hoist::OnDemand)
    }

    /// Applies the passes to `timetable`. Idle time is that at `costs`.
    ///
    /// If `how` gives no limit, recomputation and split backwards together hold no more saved
    /// activations than without both: a run that recomputes has no memory to spare for weight
    /// halves.
    ///
    /// # Errors
    /// If the timetable is not sound.
    pub fn apply(
        self,
        timetable: Timetable,
        how: &Lowering,
        costs: &impl Costs,
    ) -> Result<Timetable, Refusal> {
        let mut timetable = timetable;
        let mut limit = how.max_peak;
        if self.recompute != Recompute::None {
            if self.split_backward && limit.is_none() {
                limit = Some(dry_run(&timetable, costs)?.objective.peak);
            }
            timetable = recompute(&timetable, |_, _| self.recompute, self.hoist, how, costs)?;
        }
        // Recomputations that the timetable has itself can wait for their gradients too.
        timetable.on_demand |= self.hoist == Hoist::OnDemand && timetable.has(Kind::Recompute);
        if self.split_backward {
            let limited = Lowering { max_peak: limit, ..how.clone() };
            timetable = match self.moves {
                Moves::Offload if how.max_peak.is_some() => {
                    split::split_before_offload(&timetable, &limited, costs)?
                }
                _ => split_backward(&timetable, &limited, costs)?,
            };
        }
        let timetable = match self.moves {
            Moves::None => timetable,
            Moves::Offload => offload(timetable, how, costs)?,
            Moves::Bpipe => bpipe(timetable, costs)?,
        };
        Ok(match self.free_border {
            Some(n_steps) => free_border(timetable, n_steps),
            None => timetable,
        })
    }
}

/// The results of a dry run of a timetable.
struct DryRun {
    timeline: Timeline,
    objective: OrderObjective,
}

fn dry_run(timetable: &Timetable, costs: &impl Costs) -> Result<DryRun, Refusal> {
    let how = Lowering { sync: Sync::AtEnd, ..Lowering::default() };
    let program = lower(timetable, &how)?;
    let timeline = simulate(&program, costs);
    let objective = objective(&program, &timeline);
    Ok(DryRun { timeline, objective })
}

/// The objective of a program's order with this timeline.
pub(crate) fn objective(program: &Program, timeline: &Timeline) -> OrderObjective {
    let kept = peak_kept(program).into_iter().fold(0.0, f64::max);
    OrderObjective { makespan: timeline.makespan(), peak: program.peak(), kept }
}
