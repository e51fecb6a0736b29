//! The state of one rank: its stages, device and transport, and its progress in a step.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use chimera_schedule::analyze::{Awaited, Work};
use chimera_schedule::effects::UnitAt;
use chimera_schedule::ids::{BucketId, Rank, WorkerId};
use chimera_schedule::op::Op;
use chimera_schedule::update::Update;
use rustc_hash::FxHashMap;

use crate::comm::{Comm, Liveness, OrderedMessage, Position};
use crate::device::Device;
use crate::engine::reduce::reductions::Reductions;
use crate::engine::report::timing::{Moment, Timing};
use crate::engine::report::wait_time::Waited;
use crate::engine::state::compressed::Compressed;
use crate::engine::state::program_change::Moved;
use crate::engine::state::recoveries::Recoveries;
use crate::engine::state::shadows::Shadows;
use crate::engine::state::stage_shapes::InputShapes;
use crate::engine::state::stages::Stages;
use crate::engine::state::work_piece::Inverse;
use crate::engine::sync::step_sync::StepSync;
use crate::engine::{Job, Patience};
use crate::stage::{Left, Reassemble, Stage};

/// Longer than any training. Caps timeouts, which may be longer than a clock can represent.
const FOR_EVER: Duration = Duration::from_secs(1 << 32);

/// A stage with the tensors of the device `D`.
pub trait StageOn<D: Device>: Stage<Tensor = D::Tensor> {}

impl<D: Device, S: Stage<Tensor = D::Tensor>> StageOn<D> for S {}

pub(crate) struct State<'j, S: Stage, D, C> {
    pub(crate) job: Job<'j, S::Item>,
    pub(crate) group: usize,
    pub(crate) device: D,
    pub(crate) comm: Compressed<D, C>,
    pub(crate) stages: Stages<S>,
    pub(crate) moved: Moved<S>,
    pub(crate) reductions: Reductions<S::Tensor>,
    pub(crate) steps: Steps<S>,
    pub(crate) sync: StepSync,
    pub(crate) recoveries: Recoveries,
    pub(crate) shadows: Shadows<S::Tensor>,
    /// Inverses of K-FAC that are yet to be computed.
    pub(crate) inverses: VecDeque<Inverse>,
    pub(crate) timing: Timing,
    /// Whether the transport lets ranks leave a step.
    pub(crate) is_interruptible: bool,
    pub(crate) has_requested_stop: bool,
    /// In groups: the messages of a step in the order that the transport needs, once computed; and
    /// whether they are those of a step that takes factors.
    pub(crate) turns: Option<(bool, Vec<Vec<OrderedMessage>>)>,
}

/// The part of saved activations that stays here while their tensors are away: a function that
/// reassembles them, and what slices left.
pub(crate) type Rest<S> =
    (Reassemble<<S as Stage>::Tensor, <S as Stage>::Saved>, Vec<Left<<S as Stage>::Tensor>>);

/// The steps of the current program.
pub(crate) struct Steps<S: Stage> {
    pub(crate) first: u64,
    /// Number of updates of every weight before the program.
    pub(crate) n_updates: u64,
    /// The step with gradients that this rank has summed over all ranks, while it holds the weights
    /// they were computed with.
    pub(crate) summed: Option<u64>,
    pub(crate) losses: Vec<(Op, S::Tensor)>,
    /// By step: squared norms of the gradients of updates that do not wait for the step sync.
    pub(crate) squared_norms: Vec<f64>,
    /// The first of these gradients that is not finite, for the report at the end.
    pub(crate) culprit: String,
    pub(crate) activations: ActivationBytes,
    /// The parts of saved activations that stay here while the tensors are away.
    pub(crate) rests: FxHashMap<UnitAt, Rest<S>>,
    /// Shapes of the inputs of each unit with a pending backward.
    pub(crate) input_shapes: InputShapes,
    /// Time that this rank has waited so far, if a wait has to be tried again.
    pub(crate) waited: Waited,
    /// Whether the transport has been given the messages with updated weights.
    pub(crate) has_updates: bool,
    /// Whether all weights are whole, although they are sharded while a program runs.
    pub(crate) is_whole: bool,
    /// Whether only some of the updated shards of all ranks are here.
    pub(crate) is_within_update: bool,
}

impl<S: Stage> Steps<S> {
    pub(crate) fn new() -> Self {
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
            is_whole: true,
            is_within_update: false,
        }
    }

    /// Forgets the last program, for one that begins with step `first` and has `n_steps`.
    pub(crate) fn begin(&mut self, first: u64, n_steps: usize) {
        (self.first, self.summed, self.waited) = (first, None, Waited::default());
        (self.has_updates, self.is_within_update, self.activations.held) = (false, false, 0);
        self.losses.clear();
        self.rests.clear();
        self.input_shapes.clear();
        self.culprit.clear();
        self.squared_norms = vec![0.0; n_steps];
    }
}

/// Bytes kept for later backwards: saved activations, checkpointed inputs, weight work.
#[derive(Default)]
pub(crate) struct ActivationBytes {
    pub(crate) held: u64,
    pub(crate) peak: u64,
}

impl ActivationBytes {
    /// Updates the counts after an op that made and ate these bytes.
    pub(crate) fn change(&mut self, added: u64, freed: u64) {
        self.held = self.held + added - freed;
        self.peak = self.peak.max(self.held);
    }
}

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    pub(crate) fn rank_of(&self, worker: WorkerId, group: usize) -> Rank {
        self.job.program.placement().rank(group, worker)
    }

    /// Returns true if stages are updated separately, while other micro-batches are in progress.
    pub(crate) fn updates_alone(&self) -> bool {
        self.job.program.window().update() != Update::Flush
    }

    /// Returns true if updates in the program are validated at its end.
    pub(crate) fn validates_window(&self) -> bool {
        self.job.program.bordered().is_some() && self.job.training.validates_windows()
    }

    /// Number of a bucket's update since the start of the training.
    pub(crate) fn update_number(&self, bucket: BucketId) -> u64 {
        self.steps.n_updates + u64::from(self.job.program.buckets()[bucket.index()].update)
    }

    /// Number of a bucket's sum, which counts skipped updates too.
    pub(crate) fn sum_number(&self, bucket: BucketId) -> u64 {
        let n_updates = u64::from(self.job.program.window().updates_per_step());
        self.steps.first * n_updates + u64::from(self.job.program.buckets()[bucket.index()].update)
    }

    /// The deadline of a wait that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        let Patience { first_step, later } = self.job.patience;
        let patience = if self.sync.is_first() { first_step } else { later };
        Instant::now() + patience.min(FOR_EVER)
    }

    /// Reports this rank's position to the other ranks and to readers of its flight recorder.
    pub(crate) fn report(&mut self, position: Position) {
        self.comm.report_progress(position);
        self.timing.recent.at(position);
    }

    pub(crate) fn now(&mut self) -> Moment {
        self.timing.now()
    }

    pub(crate) fn record(&mut self, worker: WorkerId, work: Work, start: Moment) {
        self.timing.worked(self.steps.first, worker, work, start);
    }

    /// Records that the worker waited from `start` until now, for a rank or for all.
    pub(crate) fn waited(
        &mut self,
        worker: WorkerId,
        awaited: (Awaited, Option<Rank>),
        start: Moment,
    ) {
        self.timing.waited(self.steps.first, worker, awaited, start);
    }
}
