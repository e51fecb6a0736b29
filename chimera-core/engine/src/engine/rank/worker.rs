//! The worker of one rank, which runs its row repeatedly.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use chimera_schedule::analyze::Need;
use chimera_schedule::analyze::timeline::{Event, Wait};
use chimera_schedule::ids::{StageId, WorkerId};
use chimera_schedule::interp::{Advance, Row, Stop};
use chimera_schedule::op::Lane;
use chimera_schedule::program::{Instr, Program};

use crate::comm::{Comm, Endpoint, Position, all_gather};
use crate::device::{Device, KernelRun};
use crate::engine::Job;
use crate::engine::fields::Fields;
use crate::engine::optim::kfac::Layer;
use crate::engine::rank::worker_state::{WorkerState, reductions};
use crate::engine::report::flight_recorder::FlightRecorder;
use crate::engine::report::load::Load;
use crate::engine::report::timing::{StepTimeline, Timing};
use crate::engine::report::wait_time::Waited;
use crate::engine::row::ranges::InRanges;
use crate::engine::state::compressed::check_words;
use crate::engine::state::program_change::Moved;
use crate::engine::state::rank_state::{StageOn, State, Steps};
use crate::engine::state::recoveries::Recoveries;
use crate::engine::state::shadows::Shadows;
use crate::engine::state::stages::Stages;
use crate::engine::sync::agreement::Totals;
use crate::engine::sync::step_sync::StepSync;
use crate::engine::sync::validation::WindowHistory;
use crate::fault::{Class, Fault};
use crate::stage::{Param, Stage};

/// The report of a step, with the same bits on every rank.
#[derive(Clone, PartialEq, Debug)]
pub struct StepReport {
    /// Number of the step, from 0.
    pub step: u64,
    /// Mean loss over all targets of the global batch, in nats, before the update.
    pub loss: f64,
    /// Whether any target of the global batch counts. Otherwise `loss` is 0.
    pub has_targets: bool,
    /// Norm of the model's gradient before clipping; of several updates, the root mean square.
    pub grad_norm: f64,
    /// Learning rate of the update.
    pub lr: f64,
    /// Seconds since the last step sync, on the slowest rank. The time of a window is divided
    /// evenly among its steps.
    pub step_s: f64,
    /// Seconds of `step_s` in which training paused to copy state, on the slowest rank.
    pub copy_s: f64,
    /// Load of each rank in the step.
    pub ranks: Vec<Load>,
    /// Mean loss over the targets of validation samples, after the update, in nats, if requested.
    pub validation_loss: Option<f64>,
    /// The reason that the step's gradient was discarded, if it was.
    pub skipped: Option<String>,
    /// Number of steps so far with a discarded gradient.
    pub n_skipped: u64,
    /// Whether the step was trained with a border, although the program is a window without.
    pub is_bordered: bool,
    /// Number of windows without a border so far that were trained again with one.
    pub n_repeated: u64,
    /// Deaths of ranks that the training has survived.
    pub recoveries: Recoveries,
    /// Whether some rank was asked to stop; this is then the last step.
    pub stop: bool,
}

impl StepReport {
    /// Fraction of all ranks' time that was idle.
    pub fn bubble_ratio(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.bubble_ratio).sum::<f64>() / self.ranks.len() as f64
    }

    /// Total bytes of all ranks.
    pub fn bytes(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.bytes).sum()
    }
}

/// The engine of one rank.
pub struct Worker<'j, S: Stage, D, C> {
    pub(crate) state: State<'j, S, D, C>,
    pub(crate) me: WorkerId,
    /// The step to train next, if this rank has the weights for it.
    pub(crate) next: Option<u64>,
    /// Settings to compare with those of other ranks in recoveries.
    pub(crate) fields: Fields,
    pub(crate) validation: WindowHistory,
    /// The timelines of the steps of the last window, if it was trained step by step.
    pub(crate) bordered_steps: Vec<StepTimeline>,
}

impl<'j, S: StageOn<D>, D: Device, C: Comm<D::Tensor>> Worker<'j, S, D, C> {
    /// Makes the worker for the rank of `comm`, with initial weights. `stage` makes its stages.
    ///
    /// # Errors
    /// If parts of the job do not fit each other, if `stage` fails, if a stage lacks an ability
    /// that the program needs, or if the device has no memory for the weights.
    pub fn new(
        job: Job<'j, S::Item>,
        device: D,
        comm: C,
        stage: impl FnMut(StageId) -> Result<S, Fault>,
    ) -> Result<Worker<'j, S, D, C>, Fault> {
        if let Some(conflict) = job.conflict(comm.n_ranks()) {
            return Err(Fault::new(Class::Usage, comm.rank(), conflict));
        }
        let placement = job.program.placement();
        let rank = comm.rank();
        if !device.keeps_f32().map_err(|e| e.into_fault(rank))? {
            let name = device.name();
            let why = format!(
                "{name} rounds numbers to fewer digits than f32 has, which weights, norms and the optimizer's state need: \
                 choose tensors of f32 or f64"
            );
            return Err(Fault::new(Class::Usage, rank, why));
        }
        let (group, me) = placement.group_and_worker(rank);
        let stages = Stages::new(&job, &device, (rank, me), stage, &mut BTreeMap::new())?;
        check_words(&device, job.training, rank)?;
        let unfit = |why| Fault::new(Class::Usage, rank, why);
        job.training.optimizer.check(&device).map_err(unfit)?;
        let reductions = reductions(&job, &stages);
        let clock = device.clock().map_err(|e| e.into_fault(rank))?;
        let kept = WorkerState {
            group,
            me,
            device,
            stages,
            moved: Moved::default(),
            reductions,
            steps: Steps::new(),
            sync: StepSync::default(),
            recoveries: Recoveries::default(),
            shadows: Shadows::default(),
            timing: Timing::new(job.epoch, clock),
            next: None,
        };
        Ok(Worker::rejoin(job, comm, kept))
    }

    /// Trains the steps of the program from `first` on: one step, or those of a window. Returns no
    /// report if a rank was asked to stop before it or, if the step can be discarded, during it.
    /// The weights are then those of the previous step on every rank, and this worker trains no
    /// more.
    ///
    /// Trains a window again, step by step, if its updates should have waited for the border.
    pub fn run(&mut self, first: u64) -> Result<Vec<StepReport>, Fault> {
        self.bordered_steps.clear();
        self.state.timing.begin_run(first);
        let ran = match self.program().bordered().filter(|_| self.state.validates_window()) {
            Some(bordered) => self.run_validated(first, bordered),
            None => self.run_program(first),
        };
        self.state.timing.end_run();
        ran
    }

    /// Turns timing of kernels on or off, for the [`timeline`](Worker::timeline) of later runs.
    /// Timing has some overhead. Devices that cannot time kernels report none.
    pub fn time_kernels(&mut self, is_on: bool) {
        self.state.timing.time_kernels(is_on);
    }

    pub(crate) fn run_program(&mut self, first: u64) -> Result<Vec<StepReport>, Fault> {
        let program = self.state.job.program;
        self.begin(first).map_err(|f| Fault { step: Some(first), ..f })?;
        if self.state.ends_here()? {
            return Ok(Vec::new());
        }
        self.state.follow_program()?;
        if !self.run_row(first)? {
            return Ok(Vec::new());
        }
        self.state.take_weights(self.me)?;
        self.state.steps.is_within_update = false;
        if self.state.sync.skipped().is_none() {
            self.state.steps.n_updates += u64::from(program.window().n_updates());
        }
        let next = first + u64::from(program.window().n_steps());
        self.next = Some(next);
        let reports = self.reports(first);
        self.state.recoveries.replaced.clear();
        self.shadow(next)?;
        reports
    }

    /// The current program.
    pub fn program(&self) -> &'j Program {
        self.state.job.program
    }

    /// Returns true if the last step that was begun has been discarded.
    pub fn has_discarded(&self) -> bool {
        self.state.sync.is_discarded()
    }

    /// Runs the row of this worker. Returns false if the step was discarded before its end.
    fn run_row(&mut self, first: u64) -> Result<bool, Fault> {
        let Worker { state, me, .. } = self;
        let program = state.job.program;
        let instrs = &program.rows()[me.index()];
        let sync_at = instrs.iter().position(|i| *i == Instr::Agree).unwrap_or(0);
        let mut row = Row::new(*me);
        while !state.sync.is_discarded() {
            let at = row.position();
            if at < sync_at && state.is_to_discard() {
                state.discard(*me, sync_at)?;
                break;
            }
            state.report(Position::At { step: first, instr: at as u32 });
            match row.advance(instrs, program.rules(), &mut InRanges(state)) {
                Ok(Advance::Ended) => return Ok(true),
                Ok(Advance::Ran(_)) => state.steps.waited = Waited::default(),
                // A wait returns early only if the step is discarded, or if there are moves.
                Ok(Advance::Blocked) => {
                    let next_move = instrs.get(row.position_on(Lane::Moves)).copied();
                    state.look_again(instrs[row.tried()], next_move)?;
                }
                Err(Stop::Machine(fault)) => return Err(fault),
                Err(Stop::Missing(token) | Stop::Twice(token)) => {
                    panic!("a proven program went wrong at {token} on {me}")
                }
            }
        }
        Ok(false)
    }

    /// Switches to another program of the same placement.
    pub fn set_program(&mut self, program: &'j Program) -> Result<(), Fault> {
        let State { job, comm, turns, .. } = &mut self.state;
        let next = Job { program, ..*job };
        let members = |program: &Program| -> Vec<_> {
            let buckets = program.buckets_of_update().iter();
            buckets.map(|b| (b.stages.clone(), b.members.clone())).collect()
        };
        let is_same = program.placement() == job.program.placement()
            && members(program) == members(job.program);
        let conflict = if is_same {
            next.conflict(comm.n_ranks())
        } else {
            Some("the next program places stages elsewhere".to_string())
        };
        match conflict {
            None => (*job, *turns) = (next, None),
            Some(conflict) => return Err(Fault::new(Class::Usage, comm.rank(), conflict)),
        }
        Ok(())
    }

    /// Replaces the initial weights by `values` of each parameter, equal on all ranks.
    pub fn set_weights(
        &mut self,
        values: impl Fn(&Param) -> Result<Vec<f32>, Fault>,
    ) -> Result<(), Fault> {
        let State { stages, device, comm, .. } = &mut self.state;
        for held in stages.iter_mut() {
            let mut weights = (*held.weights).clone();
            for (weight, param) in weights.iter_mut().zip(held.stage.params()) {
                let made = param.upload(device, values(param)?);
                *weight = made.map_err(|e| e.into_fault(comm.rank()))?;
            }
            held.weights = Arc::new(weights);
        }
        Ok(())
    }

    /// Sends `bytes` to every rank and returns those of all ranks, indexed by rank. Call it between
    /// two runs, on all ranks in the same order. `what` names the purpose, for errors. Its time
    /// counts for no step.
    pub fn all_gather(&mut self, what: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Fault> {
        let (began, deadline) = (Instant::now(), self.state.deadline());
        let all = all_gather(&mut self.state.comm, bytes, deadline);
        self.state.timing.since.leave_out(began);
        self.state.on_wait(what, Need::Other, all)
    }

    /// Returns the events of the last run on this rank, its waits, and its kernels if they were
    /// [timed](Worker::time_kernels). Each list is in order, with times in seconds since the job's
    /// epoch. Waits for an asynchronous device, and uses its clock.
    pub fn timeline(&mut self) -> Result<(&[Event], &[Wait], &[KernelRun]), Fault> {
        let settled = self.state.timing.settle();
        self.state.on_device("clock", settled)?;
        let Timing { events, waits, kernels, .. } = &self.state.timing;
        Ok((events, waits, kernels))
    }

    /// The last things this rank did, over all runs, by the host's clock.
    pub fn recent(&self) -> &FlightRecorder {
        &self.state.timing.recent
    }

    /// Returns the parameters, weights and last summed gradients of a stage that this rank holds.
    /// Gradients are empty where another rank keeps the sum, and weights where another rank has
    /// them.
    pub fn held(&self, stage: StageId) -> Option<(&[Param], &[S::Tensor], &[S::Tensor])> {
        let held = self.state.stages.find(stage)?;
        Some((held.stage.params(), &held.weights, &held.grads))
    }

    /// Clears the results of the last run.
    fn begin(&mut self, first: u64) -> Result<(), Fault> {
        let state = &mut self.state;
        state.timing.clear();
        state.comm.begin();
        let rank = state.comm.rank();
        state.steps.begin(first, state.job.program.window().n_steps() as usize);
        state.release_all()?;
        for held in state.stages.iter_mut() {
            (held.n_updates, held.previous) = (0, None);
            held.layers.iter_mut().for_each(Layer::begin);
            let by_need = state.job.training.shard_gradients;
            held.begin_gradients(&state.device, by_need).map_err(|e| e.into_fault(rank))?;
        }
        Ok(())
    }

    pub(crate) fn reports(&self, first: u64) -> Result<Vec<StepReport>, Fault> {
        let State { sync, comm, job, recoveries, .. } = &self.state;
        let agreed = sync.agreed().ok_or_else(|| {
            Fault::new(Class::Internal, comm.rank(), "the program ends without an agreement")
        })?;
        let n_steps = agreed.steps.len();
        let report = |(index, totals): (usize, &Totals)| {
            let step = first + index as u64;
            Ok(StepReport {
                step,
                loss: totals.loss,
                // A loss other than 0 implies targets, without reading the samples.
                has_targets: totals.loss != 0.0 || self.state.n_counted(step)? > 0,
                grad_norm: totals.grad_norm(),
                lr: job.training.lr_at(step),
                step_s: agreed.span_s / n_steps as f64,
                copy_s: agreed.copy_s / n_steps as f64,
                ranks: agreed.ranks.clone(),
                validation_loss: None,
                skipped: sync.skipped().map(str::to_owned),
                n_skipped: sync.n_skipped(),
                is_bordered: false,
                n_repeated: self.validation.n_repeated(),
                recoveries: recoveries.clone(),
                stop: agreed.stop && index + 1 == n_steps,
            })
        };
        agreed.steps.iter().enumerate().map(report).collect()
    }
}
