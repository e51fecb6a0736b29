//! From a timetable to a [`Program`]: a row of passes, then the proof.
//!
//! [`lower`] is the only way to a `Program`, so one that is not proven cannot be run.

mod messages;
mod program;
mod sync;

pub use program::{Bucket, Channel, Instr, Program};
pub use sync::Sync;

use crate::analyze::{Refusal, UniformCosts, check, simulate, structure};
use crate::effects::Rules;
use crate::ids::StageId;
use crate::timetable::Timetable;
use crate::update::Update;

/// How to lower a timetable.
#[derive(Clone, PartialEq, Debug)]
pub struct Lowering {
    /// When reductions start; asynchronous schedules reduce right before each update.
    pub sync: Sync,
    /// Whether optimizer steps wait until all workers agreed on the gradient norm and on its being
    /// finite. Without, and in asynchronous schedules, each bucket is updated as soon as its gradients
    /// are in.
    pub barrier: bool,
    /// Sets of stages that share tensors; each is a bucket over the workers of all of them.
    pub tied: Vec<Vec<StageId>>,
    /// The most micro-batches whose residuals a worker may hold at once.
    pub max_peak: Option<f64>,
}

impl Default for Lowering {
    fn default() -> Lowering {
        Lowering { sync: Sync::EagerOpt, barrier: true, tied: Vec::new(), max_peak: None }
    }
}

/// Adds messages, reductions and optimizer steps to a timetable, and proves the result.
pub fn lower(timetable: &Timetable, how: &Lowering) -> Result<Program, Refusal> {
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
    };
    check::prove_compute(&program)?;
    let compute = simulate(&program, &UniformCosts::EQUAL);
    sync::insert(&mut program, &compute, how);
    drop(compute);
    let proof = check::prove(&program, how.max_peak)?;
    program.channel_bound = proof.channel_bound;
    program.peaks = proof.peaks;
    program.weight_versions = proof.weight_versions;
    Ok(program)
}
