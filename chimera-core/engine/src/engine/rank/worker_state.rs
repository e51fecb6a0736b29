//! The state of a rank without its transport, to continue with another one, or another program.

use std::collections::{BTreeSet, VecDeque};

use chimera_schedule::ids::{StageId, WorkerId};

use crate::comm::{Comm, Endpoint};
use crate::device::Device;
use crate::engine::optim::kfac::Layer;
use crate::engine::reduce::reductions::Reductions;
use crate::engine::reduce::shards::{HowSummed, parts};
use crate::engine::report::timing::Timing;
use crate::engine::state::compressed::Compressed;
use crate::engine::state::program_change::Moved;
use crate::engine::state::rank_state::{StageOn, State, Steps};
use crate::engine::state::recoveries::Recoveries;
use crate::engine::state::shadows::Shadows;
use crate::engine::state::stages::Stages;
use crate::engine::sync::step_sync::StepSync;
use crate::engine::sync::validation::WindowHistory;
use crate::engine::{Job, Training, Worker};
use crate::fault::{Class, Fault};
use crate::stage::{Param, Stage};

/// A [`Worker`] without its transport: its stages with optimizer state, and its progress.
pub struct WorkerState<S: Stage, D> {
    pub(crate) group: usize,
    pub(crate) me: WorkerId,
    pub(crate) device: D,
    pub(crate) stages: Stages<S>,
    pub(crate) moved: Moved<S>,
    pub(crate) reductions: Reductions<S::Tensor>,
    pub(crate) steps: Steps<S>,
    pub(crate) sync: StepSync,
    pub(crate) recoveries: Recoveries,
    pub(crate) shadows: Shadows<S::Tensor>,
    pub(crate) timing: Timing,
    pub(crate) next: Option<u64>,
}

impl<S: Stage, D> WorkerState<S, D> {
    /// The step to train next, if this rank has the weights for it.
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// Returns the parameters and weights of a stage, if the rank holds it.
    pub fn held(&self, stage: StageId) -> Option<(&[Param], &[S::Tensor])> {
        let held = self.stages.find(stage)?;
        Some((held.stage.params(), &held.weights))
    }
}

impl<'j, S: StageOn<D>, D: Device, C: Comm<D::Tensor>> Worker<'j, S, D, C> {
    /// Drops the transport and the step in progress.
    pub fn leave(self) -> WorkerState<S, D> {
        let Worker { state, me, next, .. } = self;
        let State {
            group,
            device,
            stages,
            moved,
            mut reductions,
            mut steps,
            sync,
            recoveries,
            mut shadows,
            timing,
            ..
        } = state;
        shadows.leave();
        reductions.clear();
        steps.losses.clear();
        steps.rests.clear();
        steps.activations.held = 0;
        WorkerState {
            group,
            me,
            device,
            stages,
            moved,
            reductions,
            steps,
            sync,
            recoveries,
            shadows,
            timing,
            next,
        }
    }

    /// Goes on with another transport. The program of `job` must be the rank's previous one.
    pub fn rejoin(job: Job<'j, S::Item>, comm: C, kept: WorkerState<S, D>) -> Worker<'j, S, D, C> {
        let WorkerState {
            group,
            me,
            device,
            stages,
            moved,
            reductions,
            steps,
            sync,
            recoveries,
            shadows,
            mut timing,
            next,
        } = kept;
        timing.restart(job.epoch); // a replacement has no earlier epoch
        let comm = Compressed::new(&job, device.clone(), comm);
        let mut state = State {
            job,
            group,
            comm,
            device,
            stages,
            moved,
            reductions,
            steps,
            sync,
            recoveries,
            shadows,
            inverses: VecDeque::new(),
            timing,
            is_interruptible: false,
            has_requested_stop: false,
            turns: None,
        };
        state.is_interruptible = state.is_interruptible();
        state.stages.iter_mut().flat_map(|held| &mut held.layers).for_each(Layer::forget);
        let (fields, validation, bordered_steps) =
            (Vec::new(), WindowHistory::default(), Vec::new());
        Worker { state, me, next, fields, validation, bordered_steps }
    }

    /// Switches to the program of another job, as the rank that this is on the current transport.
    /// Stages that the rank holds in both programs keep their state. Stages made by `stage` have
    /// yet to receive their weights.
    pub(crate) fn change_program(
        &mut self,
        job: Job<'j, S::Item>,
        stage: impl FnMut(StageId) -> Result<S, Fault>,
    ) -> Result<(), Fault> {
        if std::ptr::eq(job.program, self.state.job.program) {
            return Ok(());
        }
        let Worker { state, me, next, .. } = self;
        let rank = state.comm.rank();
        if let Some(conflict) = job.conflict(state.comm.n_ranks()) {
            return Err(Fault::new(Class::Usage, rank, conflict));
        }
        let (group, worker) = job.program.placement().group_and_worker(rank);
        let mut known = std::mem::replace(&mut state.stages, Stages::none()).into_held();
        let Moved { mut gone, lacking } = std::mem::take(&mut state.moved);
        known.append(&mut gone);
        // A replacement has initial weights until it has received all of its state.
        known.retain(|stage, _| next.is_some() && !lacking.contains(stage));
        let had: BTreeSet<StageId> = known.keys().copied().collect();
        state.stages = Stages::new(&job, &state.device, (rank, worker), stage, &mut known)?;
        let holds = job.program.placement().stages_of(worker).into_iter();
        let lacking = holds.filter(|stage| !had.contains(stage)).collect();
        state.moved = Moved { gone: known, lacking };
        state.reductions = reductions(&job, &state.stages);
        state.steps.summed = None; // stages that come from other ranks have no gradients
        (state.job, state.group, state.turns, *me) = (job, group, None, worker);
        Ok(())
    }
}

/// Prepares the reductions of the buckets of a rank with these stages; none is started.
pub(crate) fn reductions<S: Stage>(
    job: &Job<'_, S::Item>,
    stages: &Stages<S>,
) -> Reductions<S::Tensor> {
    let params = |stage| stages.find(stage).map(|held| held.stage.params());
    let Training { shard_optimizer, bf16_gradients, ref optimizer, .. } = *job.training;
    let (part_elements, within) = (job.training.bucket_elements, job.training.reduce_within);
    let of = |with_factors| {
        let how = HowSummed { keeps_sums: shard_optimizer, with_factors, part_elements, within };
        parts(job.program, job.width, stages.layout(), params, how)
    };
    let with_factors = if optimizer.preconditions() { of(true) } else { Vec::new() };
    Reductions::new(of(false), with_factors, bf16_gradients)
}
