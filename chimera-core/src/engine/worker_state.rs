//! What a rank keeps when its transport ends, so that it can go on with another one.

use super::device_comm::DeviceComm;
use super::recoveries::Recoveries;
use super::reductions::Reductions;
use super::stages::Stages;
use super::state::{StageOn, State, Steps};
use super::sync::StepSync;
use super::timing::Timing;
use super::{Job, Worker};
use crate::comm::{Comm, Endpoint};
use crate::device::Device;
use crate::ids::StageId;
use crate::stage::{Param, Stage};

/// A [`Worker`] without its transport: the weights and the optimizer state of its stages, and how far it has come.
pub struct WorkerState<S: Stage, D> {
    pub(super) device: D,
    pub(super) stages: Stages<S>,
    pub(super) reductions: Reductions<S::Tensor>,
    pub(super) steps: Steps<S::Tensor>,
    pub(super) sync: StepSync,
    pub(super) recoveries: Recoveries,
    pub(super) timing: Timing,
    pub(super) next: Option<u64>,
}

impl<S: Stage, D> WorkerState<S, D> {
    /// The step to be trained next, if this rank has the weights for it.
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// Parameters and weights of a stage, if the rank holds it.
    pub fn held(&self, stage: StageId) -> Option<(&[Param], &[S::Tensor])> {
        let held = self.stages.find(stage)?;
        Some((held.stage.params(), &held.weights))
    }
}

impl<'j, S: StageOn<D>, D: Device, C: Comm<D::Tensor>> Worker<'j, S, D, C> {
    /// Lets go of the transport, and of the step under way.
    pub fn leave(self) -> WorkerState<S, D> {
        let Worker { state, next, .. } = self;
        let State { device, stages, mut reductions, mut steps, sync, recoveries, timing, .. } =
            state;
        reductions.clear();
        steps.losses.clear();
        steps.activations.held = 0;
        WorkerState { device, stages, reductions, steps, sync, recoveries, timing, next }
    }

    /// Goes on with another transport of the ranks of the same job.
    pub fn rejoin(job: Job<'j, S::Item>, comm: C, kept: WorkerState<S, D>) -> Worker<'j, S, D, C> {
        let WorkerState { device, stages, reductions, steps, sync, recoveries, mut timing, next } =
            kept;
        timing.restart(job.epoch); // a rank that takes another's place has no earlier one
        let comm = DeviceComm::new(device.clone(), comm);
        let (group, me) = job.program.placement().group_and_worker(comm.rank());
        let mut state = State {
            job,
            group,
            comm,
            device,
            stages,
            reductions,
            steps,
            sync,
            recoveries,
            timing,
            is_interruptible: false,
            has_requested_stop: false,
        };
        state.is_interruptible = state.is_interruptible();
        Worker { state, me, next }
    }
}
