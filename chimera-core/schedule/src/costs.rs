//! Costs: the predicted time and bytes of everything in a program.

mod given;
mod growth;
mod own_work;
mod uneven;

pub use given::{GivenTimes, Miscounted, PerStage};
pub use growth::SliceGrowth;
pub use own_work::WithOwnWork;
pub use uneven::UnevenCosts;

use crate::effects::{Rules, Token};
use crate::ir::ids::{BucketId, StageId, WorkerId};
use crate::ir::op::{Cell, Kind, Op};

/// The time of everything in a program, in any unit.
///
/// Costs with a `base` inherit from it everything that they do not define. Without a base
/// everything except ops is free.
pub trait Costs {
    /// Time of an op of a worker, on its whole span.
    fn op(&self, worker: WorkerId, op: &Op) -> f64;

    /// The base of these costs, if they have one.
    fn base(&self) -> Option<&dyn Costs> {
        None
    }

    /// An atomic pair of ops.
    fn pair(&self, worker: WorkerId, a: &Op, b: &Op) -> f64 {
        match self.base() {
            Some(base) => base.pair(worker, a, b),
            None => self.op(worker, a) + self.op(worker, b),
        }
    }

    /// The part of a move's time during which the worker computes nothing. Moves between workers
    /// have none, since they are messages.
    fn move_occupies(&self, worker: WorkerId, op: &Op) -> f64 {
        self.base().map_or(0.0, |base| base.move_occupies(worker, op))
    }

    /// Time from the end of the op that makes a token until the token is on another worker.
    fn message(&self, token: &Token) -> f64 {
        self.base().map_or(0.0, |base| base.message(token))
    }

    /// The part of a message's time during which it occupies the sending worker: o in LogGP
    /// (Alexandrov et al., 1995).
    fn occupies(&self, token: &Token) -> f64 {
        self.base().map_or(0.0, |base| base.occupies(token))
    }

    /// The part of a reduction during which its start occupies each worker.
    fn reduce_occupies(&self, bucket: BucketId) -> f64 {
        self.base().map_or(0.0, |base| base.reduce_occupies(bucket))
    }

    /// Time from the last replica's start of a reduction to its end.
    fn reduce(&self, bucket: BucketId) -> f64 {
        self.base().map_or(0.0, |base| base.reduce(bucket))
    }

    /// The share of each member's compute and sends that a reduction takes while it runs, below 1.
    /// Only the simulation counts it: slack and causes of idle time do not.
    fn reduction_share(&self) -> f64 {
        self.base().map_or(0.0, |base| base.reduction_share())
    }

    /// The links that a reduction occupies, each by its number and with the time. A link serves one
    /// reduction at a time.
    fn links(&self, bucket: BucketId) -> &[(usize, f64)] {
        self.base().map_or(&[], |base| base.links(bucket))
    }

    /// Time from the sending of a replica's shard of a stage's weights until it is on the worker that
    /// gathers them.
    fn share(&self, from: WorkerId, to: WorkerId, stage: StageId) -> f64 {
        self.base().map_or(0.0, |base| base.share(from, to, stage))
    }

    /// Time of the step sync of all workers.
    fn agree(&self) -> f64 {
        self.base().map_or(0.0, |base| base.agree())
    }

    /// Time of the optimizer's update of a bucket.
    fn step(&self, bucket: BucketId) -> f64 {
        self.base().map_or(0.0, |base| base.step(bucket))
    }
}

/// Time of a cell on a worker.
pub fn of_cell<C: Costs + ?Sized>(costs: &C, worker: WorkerId, cell: &Cell) -> f64 {
    match cell {
        Cell::One(op) => costs.op(worker, op),
        Cell::Pair(a, b) => costs.pair(worker, a, b),
    }
}

/// Returns true if `one` time is shorter than `other` by more than rounding, in any unit.
pub fn is_shorter(one: f64, other: f64) -> bool {
    one < other * (1.0 - 1e-9)
}

/// The costs of a stage, per whole micro-batch; as [`Costs`], the same for every stage.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct UniformCosts {
    /// A forward.
    pub forward: f64,
    /// The input half of a backward.
    pub input: f64,
    /// The weight half of a backward.
    pub weight: f64,
    /// The time of an atomic pair of a forward and a whole backward, if it differs from the sum of
    /// both. Other pairs always take what their ops take.
    pub pair: Option<f64>,
    /// A recomputation.
    pub recompute: f64,
    /// A message.
    pub message: f64,
    /// Time of a move of saved activations, from one memory to another.
    pub transfer: f64,
    /// The part of a move during which the worker computes nothing.
    pub transfer_occupies: f64,
    /// The number of units a micro-batch is cut into.
    pub units_per_micro: u32,
    /// Growth of costs from slice to slice, where units are slices of sequences.
    pub growth: SliceGrowth,
}

impl UniformCosts {
    /// Forward and whole backward take one unit of time each: the papers' drawings.
    pub const EQUAL: UniformCosts = UniformCosts::new(1.0, 1.0, 0.0);

    /// Costs of forward, whole backward (its halves take half each) and message; a recomputation
    /// takes as long as a forward.
    pub const fn new(forward: f64, backward: f64, message: f64) -> UniformCosts {
        let half = backward / 2.0;
        UniformCosts {
            forward,
            input: half,
            weight: half,
            pair: None,
            recompute: forward,
            message,
            transfer: 0.0,
            transfer_occupies: 0.0,
            units_per_micro: 1,
            growth: SliceGrowth::NONE,
        }
    }

    /// Divides the costs for micro-batches that are cut into `units` equal units.
    pub const fn per_units(self, units: u32) -> UniformCosts {
        UniformCosts { units_per_micro: units, growth: SliceGrowth::NONE, ..self }
    }

    /// Divides the costs for micro-batches with sequences in `slices` slices.
    pub const fn per_slices(self, slices: u32) -> UniformCosts {
        UniformCosts { units_per_micro: slices, ..self }
    }

    /// The costs of a part of the stage: `share` of its compute, and whole messages.
    pub fn share(self, share: f64) -> UniformCosts {
        UniformCosts {
            forward: self.forward * share,
            input: self.input * share,
            weight: self.weight * share,
            pair: self.pair.map(|pair| pair * share),
            recompute: self.recompute * share,
            transfer: self.transfer * share,
            transfer_occupies: self.transfer_occupies * share,
            growth: self.growth.share(share),
            ..self
        }
    }

    /// The costs of a stage that holds this one and the `next`. Its messages cost what the messages
    /// of `next` cost.
    pub fn and(self, next: UniformCosts) -> UniformCosts {
        UniformCosts {
            forward: self.forward + next.forward,
            input: self.input + next.input,
            weight: self.weight + next.weight,
            pair: self.pair.zip(next.pair).map(|(a, b)| a + b),
            recompute: self.recompute + next.recompute,
            transfer: self.transfer + next.transfer,
            transfer_occupies: self.transfer_occupies + next.transfer_occupies,
            growth: self.growth.and(next.growth),
            ..next
        }
    }

    fn of_op(&self, op: &Op) -> f64 {
        let growth = &self.growth;
        let (mean, grows) = match op.kind {
            Kind::Forward => (self.forward, growth.forward),
            Kind::Backward => (self.input + self.weight, growth.input + growth.weight),
            Kind::BackwardInput => (self.input, growth.input),
            Kind::BackwardWeight => (self.weight, growth.weight),
            Kind::Recompute => (self.recompute, growth.recompute),
            Kind::Offload | Kind::Reload | Kind::Return => (self.transfer, 0.0),
            Kind::Keep | Kind::Work(_) => (0.0, 0.0),
        };
        let micro = if grows == 0.0 { mean } else { (mean + grows * self.place(op)).max(0.0) };
        micro * self.micro_batches(op)
    }

    /// The position of an op in its sequence: from -1 at the beginning to 1 at the end, and 0 for
    /// the whole sequence.
    fn place(&self, op: &Op) -> f64 {
        let n = self.units_per_micro;
        f64::from(2 * (op.span.start % n) + u32::from(op.span.len)) / f64::from(n) - 1.0
    }

    /// The cost of a pair, if these ops are a pair with a cost of its own.
    fn of_pair(&self, a: &Op, b: &Op) -> Option<f64> {
        let both = matches!(
            (a.kind, b.kind),
            (Kind::Forward, Kind::Backward) | (Kind::Backward, Kind::Forward)
        );
        if !both {
            return None;
        }
        Some(self.pair? * self.micro_batches(a).max(self.micro_batches(b)))
    }

    fn micro_batches(&self, op: &Op) -> f64 {
        f64::from(op.span.len) / f64::from(self.units_per_micro)
    }
}

impl Costs for UniformCosts {
    fn op(&self, _: WorkerId, op: &Op) -> f64 {
        self.of_op(op)
    }

    fn pair(&self, _: WorkerId, a: &Op, b: &Op) -> f64 {
        self.of_pair(a, b).unwrap_or_else(|| self.of_op(a) + self.of_op(b))
    }

    fn move_occupies(&self, _: WorkerId, op: &Op) -> f64 {
        self.transfer_occupies * self.micro_batches(op)
    }

    fn message(&self, _: &Token) -> f64 {
        self.message
    }

    fn share(&self, from: WorkerId, to: WorkerId, _: StageId) -> f64 {
        if from == to { 0.0 } else { self.message }
    }
}

/// Costs that differ by stage.
///
/// A pair costs as much as on the stage of its forward, and a message as much as on the stage that
/// sends it.
#[derive(Clone, PartialEq, Debug)]
pub struct StageCosts {
    stages: Vec<UniformCosts>,
}

impl StageCosts {
    /// The costs of stages `0..S`. Anything asked about a stage beyond them panics.
    pub fn new(stages: Vec<UniformCosts>) -> StageCosts {
        StageCosts { stages }
    }

    /// Sets the time of moves, by stage. They run in parallel to compute.
    pub fn with_transfers(mut self, transfers: impl Fn(usize) -> f64) -> StageCosts {
        for (stage, costs) in self.stages.iter_mut().enumerate() {
            (costs.transfer, costs.transfer_occupies) = (transfers(stage), 0.0);
        }
        self
    }

    fn of(&self, stage: StageId) -> &UniformCosts {
        &self.stages[stage.index()]
    }
}

impl Costs for StageCosts {
    fn op(&self, _: WorkerId, op: &Op) -> f64 {
        self.of(op.stage).of_op(op)
    }

    fn pair(&self, worker: WorkerId, a: &Op, b: &Op) -> f64 {
        let forward = if b.kind == Kind::Forward { b } else { a };
        let pair = self.of(forward.stage).of_pair(a, b);
        pair.unwrap_or_else(|| self.op(worker, a) + self.op(worker, b))
    }

    fn move_occupies(&self, worker: WorkerId, op: &Op) -> f64 {
        self.of(op.stage).move_occupies(worker, op)
    }

    fn message(&self, token: &Token) -> f64 {
        self.of(token.stage).message
    }

    fn share(&self, from: WorkerId, to: WorkerId, stage: StageId) -> f64 {
        self.of(stage).share(from, to, stage)
    }
}

/// Bytes that one sample leaves at a stage, and bytes that its ops use while they run.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct StageBytes {
    /// Saved activations.
    pub saved: f64,
    /// The saved activations that selective recomputation keeps.
    pub selected: f64,
    /// The input on all input edges, which full recomputation keeps. 0 for a source: its ids come
    /// with the micro-batch.
    pub input: f64,
    /// Bytes that the weight half of a backward needs from its input half.
    pub deferred: f64,
    /// Output of the forward on each output edge: another stage's input, or the loss's gradient.
    pub output: f64,
    /// Output of the backward: the gradient of the input on all input edges.
    pub gradient: f64,
    /// Bytes that a sample leaves for later slices of its sequence, such as keys and values, all
    /// slices together.
    pub past: f64,
    /// Working memory of a forward: the most that it uses at once, beyond what existed before.
    pub forward: f64,
    /// Like `forward`, for a recomputation.
    pub recompute: f64,
    /// Like `forward`, for a recomputation from selected saved activations.
    pub restore: f64,
    /// Like `forward`, for a whole backward.
    pub backward: f64,
    /// Like `forward`, for the input half of a backward.
    pub backward_input: f64,
    /// Like `forward`, for the weight half of a backward.
    pub backward_weight: f64,
}

impl StageBytes {
    /// Bytes of a sample that are kept for a recomputation.
    pub(crate) fn kept(&self, rules: &Rules, token: &Token) -> f64 {
        if rules.is_selective(token.pipe, token.stage) {
            return self.selected;
        }
        // The values of a slice are read until the backwards of all later slices are done.
        let n_slices = rules.n_slices();
        let is_last = token.span.start % n_slices + 1 == n_slices;
        if is_last { self.input } else { self.input + self.past }
    }

    /// Working memory of an op on units with `samples` samples each.
    pub(crate) fn working(&self, rules: &Rules, op: &Op, samples: f64) -> f64 {
        let (unit, left) = match op.kind {
            // all units at once
            Kind::Forward => return self.forward * samples * f64::from(op.span.len),
            Kind::Recompute if rules.is_selective(op.pipe, op.stage) => {
                (self.restore, self.saved - self.selected)
            }
            Kind::Recompute => (self.recompute, self.saved - self.input),
            Kind::Backward => (self.backward, 0.0),
            Kind::BackwardInput => (self.backward_input, self.deferred - self.saved),
            Kind::BackwardWeight => (self.backward_weight, 0.0),
            Kind::Offload | Kind::Reload | Kind::Keep | Kind::Return | Kind::Work(_) => return 0.0,
        };
        // One unit after another, on top of what the earlier ones left.
        (unit + left.max(0.0) * f64::from(op.span.len.saturating_sub(1))) * samples
    }
}
