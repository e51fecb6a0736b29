//! What one rank has: its stages with their weights, its wires, and where it stands in a step.

use std::sync::Arc;
use std::time::Instant;

use super::agreement::Agreed;
use super::device_comm::DeviceComm;
use super::layout::Layout;
use super::optimizer::Step;
use super::reduction::Reduction;
use super::timing::{Moment, Timing};
use super::{Job, Patience};
use crate::analyze::timeline::{Awaited, Work};
use crate::comm::Comm;
use crate::device::{Device, DeviceError, Updated};
use crate::ids::{BucketId, Rank, StageId, WorkerId};
use crate::op::Op;
use crate::stage::Stage;
use crate::update::Update;

/// A stage with its weights, gradients and moments, in the order of its parameters.
pub(super) struct Held<S: Stage> {
    pub(super) stage: S,
    pub(super) weights: Weights<S>,
    /// The version before, in a double buffer.
    pub(super) previous: Option<Weights<S>>,
    /// Updates since the start of the program.
    pub(super) n_updates: u32,
    pub(super) grads: Vec<S::Tensor>,
    /// `None` where another rank updates the tensor.
    pub(super) moments: Vec<Option<[S::Tensor; 2]>>,
}

/// One version of a stage's weights, which lives as long as somebody has to read it.
pub(super) type Weights<S> = Arc<Vec<<S as Stage>::Tensor>>;

/// Where a rank keeps one tensor of a bucket: stage and index of the parameter. A tied tensor may have
/// two places on one rank.
pub(super) type Places = Vec<(StageId, usize)>;

/// One rank's world.
pub(super) struct World<'j, S: Stage, D, C> {
    pub(super) job: Job<'j, S::Item>,
    pub(super) device: D,
    pub(super) comm: DeviceComm<D, C>,
    pub(super) group: usize,
    /// By stage; `None` where another worker holds it.
    pub(super) held: Vec<Option<Held<S>>>,
    /// By bucket of an update and tensor.
    pub(super) layout: Vec<Vec<Places>>,
    /// Likewise: which replica owns the tensor.
    pub(super) owners: Vec<Vec<Rank>>,
    /// By bucket of an update: how its gradients lie in the buffer that is reduced.
    pub(super) buffers: Vec<Arc<Layout>>,
    /// The first step of the program.
    pub(super) step: u64,
    /// Updates of every weight before the program.
    pub(super) n_updates: u64,
    pub(super) under_way: Vec<(BucketId, Reduction<S::Tensor>, Moment)>,
    pub(super) losses: Vec<(Op, S::Tensor)>,
    /// By step: squared norms of the gradients of updates that wait for no agreement.
    pub(super) squared_norms: Vec<f64>,
    pub(super) residuals: ResidualBytes,
    pub(super) timing: Timing,
    pub(super) since_agreed: Since,
    pub(super) agreed: Option<Agreed>,
    /// Why the step under way makes no update, if it does not.
    pub(super) skipped: Option<String>,
    /// Steps that made none.
    pub(super) n_skipped: u64,
    pub(super) skipped_in_a_row: u64,
}

/// Bytes of what is kept for backwards to come: residuals, kept inputs, deferred weight work.
#[derive(Default)]
pub(super) struct ResidualBytes {
    pub(super) held: u64,
    pub(super) peak: u64,
}

impl ResidualBytes {
    /// After an op that made and ate so much.
    pub(super) fn change(&mut self, added: u64, freed: u64) {
        self.held = self.held + added - freed;
        self.peak = self.peak.max(self.held);
    }
}

/// Time since the last agreement.
pub(super) struct Since {
    pub(super) start: Instant,
    /// Seconds of copying the state to the host.
    pub(super) copy_s: f64,
}

impl Since {
    /// None has passed yet.
    pub(super) fn now() -> Since {
        Since { start: Instant::now(), copy_s: 0.0 }
    }

    /// Takes what has lasted since `began` for no part of a step.
    pub(super) fn leave_out(&mut self, began: Instant) {
        self.start += began.elapsed();
    }
}

impl<S, D, C> World<'_, S, D, C>
where
    S: Stage<Tensor = D::Tensor>,
    D: Device,
    C: Comm<D::Tensor>,
{
    /// The rank of a worker of a group.
    pub(super) fn rank_of(&self, worker: WorkerId, group: usize) -> Rank {
        self.job.program.placement().rank(group, worker)
    }

    /// Whether updates are made while other micro-batches are on their way.
    pub(super) fn is_asynchronous(&self) -> bool {
        self.job.program.window().update() != Update::Flush
    }

    /// Number of a bucket's update since the start of the training.
    pub(super) fn update_number(&self, bucket: BucketId) -> u64 {
        self.n_updates + u64::from(self.job.program.buckets()[bucket.index()].update)
    }

    /// Number of a bucket's sum, which is its own even where updates are skipped.
    pub(super) fn sum_number(&self, bucket: BucketId) -> u64 {
        let n_updates = u64::from(self.job.program.window().updates_per_step());
        self.step * n_updates + u64::from(self.job.program.buckets()[bucket.index()].update)
    }

    /// Where this rank keeps the tensors of a bucket.
    pub(super) fn places(&self, bucket: BucketId) -> &[Places] {
        of_bucket::<Vec<_>>(&self.layout, bucket)
    }

    /// The version of the weights that a forward reads: the newest, or the one that the rule of the
    /// double buffer names even where a newer one is there.
    pub(super) fn version(&self, op: &Op) -> &Weights<S> {
        let (held, window) = (self.held(op.stage), self.job.program.window());
        let version = match window.update() {
            Update::Flush | Update::Stash { .. } => held.n_updates,
            Update::DoubleBuffer { .. } => window.update_of(op.span).saturating_sub(1),
        };
        if version == held.n_updates {
            return &held.weights;
        }
        held.previous.as_ref().unwrap_or_else(|| panic!("{op} finds no version {version}"))
    }

    pub(super) fn deadline(&self) -> Instant {
        let Patience { first_step, later } = self.job.patience;
        Instant::now() + if self.agreed.is_none() { first_step } else { later }
    }

    pub(super) fn now(&mut self) -> Moment {
        self.timing.now()
    }

    pub(super) fn record(&mut self, worker: WorkerId, work: Work, start: Moment) {
        self.timing.worked(self.step, worker, work, start);
    }

    /// Notes that the worker waited from `start` until now.
    pub(super) fn waited(&mut self, worker: WorkerId, awaited: Awaited, start: Moment) {
        self.timing.waited(self.step, worker, awaited, start);
    }

    /// The proof places every op where its stage is, so a stage that is not here is a bug.
    pub(super) fn held(&self, stage: StageId) -> &Held<S> {
        self.held[stage.index()].as_ref().unwrap_or_else(|| panic!("{stage} is not on this worker"))
    }
}

impl<S: Stage> Held<S> {
    /// Moments of zeros for a tensor that this rank updates.
    pub(super) fn begin_moments<D: Device<Tensor = S::Tensor>>(
        &mut self,
        device: &D,
        index: usize,
    ) -> Result<(), DeviceError> {
        let shape = &self.stage.params()[index].shape;
        self.moments[index] = Some([device.zeros(shape)?, device.zeros(shape)?]);
        Ok(())
    }

    /// Zeros for the gradients of the next update. Never cleared in place: the sums of the last may be
    /// shared with other ranks.
    pub(super) fn clear_gradients<D: Device<Tensor = S::Tensor>>(
        &mut self,
        device: &D,
    ) -> Result<(), DeviceError> {
        for (grad, param) in self.grads.iter_mut().zip(self.stage.params()) {
            *grad = device.zeros(&param.shape)?;
        }
        Ok(())
    }

    /// Updates those of some tensors that are this rank's to update, which makes the next version of the weights:
    /// in place, unless the present one is still to be read. With `keeps_previous` it is, by forwards to come.
    pub(super) fn update<D: Device<Tensor = S::Tensor>>(
        &mut self,
        device: &D,
        indices: impl Iterator<Item = usize>,
        keeps_previous: bool,
        step: &Step<'_>,
    ) -> Result<(), DeviceError> {
        self.previous = keeps_previous.then(|| Arc::clone(&self.weights));
        if Arc::get_mut(&mut self.weights).is_none() {
            let copies = self.weights.iter().map(|w| copy(device, w));
            self.weights = Arc::new(copies.collect::<Result<_, _>>()?);
        }
        let mut is_mine = vec![false; self.grads.len()];
        indices.for_each(|index| is_mine[index] = true);
        let weights = Arc::make_mut(&mut self.weights).iter_mut();
        let all = weights.zip(&mut self.moments).zip(self.grads.iter().zip(self.stage.params()));
        let tensors = all.zip(is_mine).filter(|(_, is_mine)| *is_mine);
        step.update(
            device,
            tensors.filter_map(|(((w, moments), (g, param)), _)| {
                let [m, v] = moments.as_mut()?;
                Some((param, Updated { w, g, m, v }))
            }),
        )
    }
}

/// Clones of a device's tensors share memory, which updates write to.
pub(super) fn copy<D: Device>(device: &D, tensor: &D::Tensor) -> Result<D::Tensor, DeviceError> {
    let mut copy = device.zeros(&device.shape(tensor))?;
    device.accumulate(&mut copy, tensor)?;
    Ok(copy)
}

pub(super) fn held_mut<S: Stage>(held: &mut [Option<Held<S>>], stage: StageId) -> &mut Held<S> {
    held[stage.index()].as_mut().unwrap_or_else(|| panic!("{stage} is not on this worker"))
}

/// What a list by bucket of an update has of a bucket of any update.
pub(super) fn of_bucket<T>(list: &[T], bucket: BucketId) -> &T {
    &list[bucket.index() % list.len()]
}
