//! What one rank has: its stages, its device and wires, and where it stands in a step.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use chimera_schedule::analyze::{Awaited, Work};
use chimera_schedule::effects::UnitAt;
use chimera_schedule::ids::{BucketId, Rank, WorkerId};
use chimera_schedule::op::Op;
use chimera_schedule::update::Update;
use rustc_hash::FxHashMap;

use super::device_comm::DeviceComm;
use super::held::Weights;
use super::moved::Moved;
use super::recoveries::Recoveries;
use super::reductions::Reductions;
use super::shadows::Shadows;
use super::stage_shapes::InputShapes;
use super::stages::Stages;
use super::sync::StepSync;
use super::timing::{Moment, Timing};
use super::waited::Waited;
use super::work_piece::Inverse;
use super::{Job, Patience};
use crate::comm::{Comm, Liveness, OrderedMessage, Position};
use crate::device::Device;
use crate::stage::{Left, Reassemble, Stage};

/// Longer than any training: a patience may be longer than a clock can tell.
const FOR_EVER: Duration = Duration::from_secs(1 << 32);

/// A stage whose tensors are those of the device `D`.
pub trait StageOn<D: Device>: Stage<Tensor = D::Tensor> {}

impl<D: Device, S: Stage<Tensor = D::Tensor>> StageOn<D> for S {}

/// The state of one rank.
pub(super) struct State<'j, S: Stage, D, C> {
    pub(super) job: Job<'j, S::Item>,
    pub(super) group: usize,
    pub(super) device: D,
    pub(super) comm: DeviceComm<D, C>,
    pub(super) stages: Stages<S>,
    pub(super) moved: Moved<S>,
    pub(super) reductions: Reductions<S::Tensor>,
    pub(super) steps: Steps<S>,
    pub(super) sync: StepSync,
    pub(super) recoveries: Recoveries,
    pub(super) shadows: Shadows<S::Tensor>,
    /// Inverses of K-FAC that are yet to be computed.
    pub(super) inverses: VecDeque<Inverse>,
    pub(super) timing: Timing,
    /// Whether the transport lets ranks leave a step.
    pub(super) is_interruptible: bool,
    pub(super) has_requested_stop: bool,
    /// In groups: the messages of a step in the order that the transport needs, if it has been asked for; and whether the step
    /// takes factors.
    pub(super) turns: Option<(bool, Vec<Vec<OrderedMessage>>)>,
}

/// What stays of saved activations whose tensors are away: how to put them together again, and what slices left, which
/// stays here.
pub(super) type Rest<S> =
    (Reassemble<<S as Stage>::Tensor, <S as Stage>::Saved>, Vec<Left<<S as Stage>::Tensor>>);

/// The steps of the program under way.
pub(super) struct Steps<S: Stage> {
    /// The first one.
    pub(super) first: u64,
    /// Updates of every weight before the program.
    pub(super) n_updates: u64,
    /// The step whose gradients this rank has summed over all ranks, while it holds what they were computed with.
    pub(super) summed: Option<u64>,
    pub(super) losses: Vec<(Op, S::Tensor)>,
    /// By step: squared norms of the gradients of updates that wait for no agreement.
    pub(super) squared_norms: Vec<f64>,
    /// Which of these gradients is not finite, if that is said at the end of the program.
    pub(super) culprit: String,
    pub(super) activations: ActivationBytes,
    /// What stays of saved activations that are away.
    pub(super) rests: FxHashMap<UnitAt, Rest<S>>,
    /// Extents of the inputs of each unit whose backward is yet to come.
    pub(super) input_shapes: InputShapes,
    /// How long this rank has waited, if another wait has to be tried again.
    pub(super) waited: Waited,
    /// Whether the transport knows which updated weights are sent.
    pub(super) has_updates: bool,
    /// Whether shards have been updated, and those of others are not all here.
    pub(super) is_within_update: bool,
}

impl<S: Stage> Steps<S> {
    /// None yet.
    pub(super) fn new() -> Self {
        Steps {
            first: 0,
            n_updates: 0,
            summed: None,
            losses: Vec::new(),
            squared_norms: Vec::new(),
            culprit: String::new(),
            activations: ActivationBytes::default(),
            rests: FxHashMap::default(),
            input_shapes: InputShapes::default(),
            waited: Waited::default(),
            has_updates: false,
            is_within_update: false,
        }
    }

    /// Forgets the last program for one that begins with the step `first` and has `n_steps`.
    pub(super) fn begin(&mut self, first: u64, n_steps: usize) {
        (self.first, self.summed, self.waited) = (first, None, Waited::default());
        (self.has_updates, self.is_within_update) = (false, false);
        self.losses.clear();
        self.rests.clear();
        self.input_shapes.clear();
        self.culprit.clear();
        self.squared_norms = vec![0.0; n_steps];
    }
}

/// Bytes of what is kept for backwards to come: saved activations, checkpointed inputs, deferred weight work.
#[derive(Default)]
pub(super) struct ActivationBytes {
    pub(super) held: u64,
    pub(super) peak: u64,
}

impl ActivationBytes {
    /// After an op that made and ate so much.
    pub(super) fn change(&mut self, added: u64, freed: u64) {
        self.held = self.held + added - freed;
        self.peak = self.peak.max(self.held);
    }
}

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    /// The rank of a worker of a group.
    pub(super) fn rank_of(&self, worker: WorkerId, group: usize) -> Rank {
        self.job.program.placement().rank(group, worker)
    }

    /// Whether stages are updated on their own, while other micro-batches are on their way.
    pub(super) fn updates_alone(&self) -> bool {
        self.job.program.window().update() != Update::Flush
    }

    /// Whether it is found out at the end of the program if updates in it were wrong.
    pub(super) fn validates_window(&self) -> bool {
        self.job.program.bordered().is_some() && self.job.training.validates_windows()
    }

    /// Number of a bucket's update since the start of the training.
    pub(super) fn update_number(&self, bucket: BucketId) -> u64 {
        self.steps.n_updates + u64::from(self.job.program.buckets()[bucket.index()].update)
    }

    /// Number of a bucket's sum, which is its own even where updates are skipped.
    pub(super) fn sum_number(&self, bucket: BucketId) -> u64 {
        let n_updates = u64::from(self.job.program.window().updates_per_step());
        self.steps.first * n_updates + u64::from(self.job.program.buckets()[bucket.index()].update)
    }

    /// The version of the weights that a forward reads.
    pub(super) fn version(&self, op: &Op) -> &Weights<S> {
        self.stages.version(op, self.job.program.window())
    }

    /// When a wait that begins now lasts too long.
    pub(super) fn deadline(&self) -> Instant {
        let Patience { first_step, later } = self.job.patience;
        let patience = if self.sync.is_first() { first_step } else { later };
        Instant::now() + patience.min(FOR_EVER)
    }

    /// Says where this rank is, to the other ranks and to who looks at its flight recorder.
    pub(super) fn report(&mut self, position: Position) {
        self.comm.report_progress(position);
        self.timing.recent.at(position);
    }

    pub(super) fn now(&mut self) -> Moment {
        self.timing.now()
    }

    pub(super) fn record(&mut self, worker: WorkerId, work: Work, start: Moment) {
        self.timing.worked(self.steps.first, worker, work, start);
    }

    /// Notes that the worker waited from `start` until now.
    pub(super) fn waited(&mut self, worker: WorkerId, awaited: Awaited, start: Moment) {
        self.timing.waited(self.steps.first, worker, awaited, start);
    }
}
