//! Trains the stages of any model with any program: on threads of this process, or one rank over a given transport.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::comm::{Comm, Endpoint, Meeting, Rendezvous, Threads};
use crate::device::{Device, DeviceError};
use crate::engine::{
    DoPiece, Job, Patience, Recovered, StepReport, Training, Worker, WorkerState, run_threads,
};
use crate::fault::{Class, Fault};
use crate::ids::{Rank, StageId};
use crate::lower::Programs;
use crate::program::Program;
use crate::stage::{Data, Stage, name_conflict};

/// A training: what runs, on what, and how.
///
/// The defaults are one pipeline group, micro-batches of one sample, and [`Training::default`].
pub struct Trainer<'t, I = u32> {
    program: &'t Program,
    data: &'t dyn Data<I>,
    training: Training,
    width: usize,
    micro_batch_size: usize,
    patience: Patience,
    stop: Option<&'t AtomicBool>,
    observe: Option<Observer<'t>>,
    own_work: Option<&'t DoPiece<'t>>,
}

type Observer<'t> = &'t (dyn Fn(&StepReport) + Sync);

/// What a training leaves.
#[derive(Clone, Debug)]
pub struct Trained<T> {
    /// Reports of all steps, in order.
    pub reports: Vec<StepReport>,
    /// Weights by name of their parameter: of all stages after [`Trainer::on_threads`], of those that the rank holds
    /// after [`Trainer::on_rank`].
    pub weights: BTreeMap<String, T>,
}

impl<'t, I: Copy + Send + Sync + 'static> Trainer<'t, I> {
    /// Trains `program` on samples of `data`.
    pub fn new(program: &'t Program, data: &'t dyn Data<I>) -> Self {
        Trainer {
            program,
            data,
            training: Training::default(),
            width: 1,
            micro_batch_size: 1,
            patience: Patience::default(),
            stop: None,
            observe: None,
            own_work: None,
        }
    }

    /// Sets seed, number of steps, optimizer and learning rates.
    pub fn training(self, training: Training) -> Self {
        Trainer { training, ..self }
    }

    /// Sets the number of pipeline groups (data-parallel size), W.
    pub fn width(self, width: usize) -> Self {
        Trainer { width, ..self }
    }

    /// Sets the number of samples of a micro-batch, B.
    pub fn micro_batch_size(self, micro_batch_size: usize) -> Self {
        Trainer { micro_batch_size, ..self }
    }

    /// Sets how long a rank waits for a peer before it calls the peer lost.
    pub fn patience(self, patience: Patience) -> Self {
        Trainer { patience, ..self }
    }

    /// Sets a flag that ends the training, once it is true: the step under way is discarded on all ranks if the program has
    /// the barrier and some rank has not come to its step sync, else it is finished.
    pub fn stop_when(self, stop: &'t AtomicBool) -> Self {
        Trainer { stop: Some(stop), ..self }
    }

    /// Calls `observe` on rank 0 after every step.
    pub fn on_step(self, observe: Observer<'t>) -> Self {
        Trainer { observe: Some(observe), ..self }
    }

    /// Calls `own_work` for each piece of [work beside the training](crate::lower::fill) that the program has.
    pub fn own_work(self, own_work: &'t DoPiece<'t>) -> Self {
        Trainer { own_work: Some(own_work), ..self }
    }

    /// Trains with a thread to each rank; `device` opens the device of a rank, and `stage` makes a stage on it.
    ///
    /// # Errors
    /// The first cause for which a rank failed.
    pub fn on_threads<S, D>(
        &self,
        device: impl Fn(Rank) -> Result<D, DeviceError> + Sync,
        stage: impl Fn(&D, StageId) -> Result<S, Fault> + Sync,
    ) -> Result<Trained<D::Tensor>, Fault>
    where
        S: Stage<Tensor = D::Tensor, Item = I>,
        D: Device,
    {
        let n_ranks = self.width.saturating_mul(self.program.placement().n_workers());
        let n_ranks = u32::try_from(n_ranks).map_err(|_| {
            Fault::new(Class::Usage, Rank(0), format!("{n_ranks} ranks are too many"))
        })?;
        let ranks = run_threads(n_ranks, |comm: &mut Threads<D::Tensor>| {
            let device = device(comm.rank()).map_err(|e| e.into_fault(comm.rank()))?;
            self.on_rank(comm, device.clone(), |id| stage(&device, id))
        })?;
        let joined = ranks.into_iter().reduce(|mut all, other| {
            all.weights.extend(other.weights);
            all
        });
        Ok(joined.unwrap_or_else(|| Trained { reports: Vec::new(), weights: BTreeMap::new() }))
    }

    /// Trains the rank that `comm` is; `stage` makes the stages that it holds.
    ///
    /// # Errors
    /// If parts of the training do not fit each other, or this rank or another one fails.
    pub fn on_rank<S, D, C>(
        &self,
        comm: C,
        device: D,
        stage: impl FnMut(StageId) -> Result<S, Fault>,
    ) -> Result<Trained<D::Tensor>, Fault>
    where
        S: Stage<Tensor = D::Tensor, Item = I>,
        D: Device,
        C: Comm<D::Tensor>,
    {
        let goes_on = AtomicBool::new(false);
        let rank = comm.rank();
        self.check_steps(rank)?;
        let mut worker = Worker::new(self.job(&goes_on), device, comm, stage)?;
        self.check_names(&mut worker, rank)?;
        let mut course = Course::default();
        self.run(&mut worker, &mut course, rank == Rank(0))?;
        Ok(self.trained(&worker.leave(), course))
    }

    /// Trains one rank and goes on where others die: their places are taken by ranks that come to the next meeting and get
    /// weights and optimizer state from the replicas of their stages. The step under way is computed again, to the same bits.
    /// Where a meeting is without some ranks, the others train [what all would](crate::lower::narrow()), up to the rounding of
    /// sums, until a meeting has all ranks again.
    ///
    /// The observer on rank 0 may be told the last step again that a dead rank 0 has told.
    ///
    /// # Errors
    /// The errors of [`on_rank`](Trainer::on_rank), but for the death of a rank; if a stage is held by no rank that lives; if
    /// the program does not let ranks be replaced: it must be synchronous, with the barrier. A sharded optimizer needs copies
    /// ([`shadow_every`](Training::shadow_every)), and all ranks at every meeting.
    pub fn on_rendezvous<S, D, C>(
        &self,
        meetings: &mut impl Rendezvous<C>,
        device: D,
        mut stage: impl FnMut(StageId) -> Result<S, Fault>,
    ) -> Result<Trained<D::Tensor>, Fault>
    where
        S: Stage<Tensor = D::Tensor, Item = I>,
        D: Device,
        C: Comm<D::Tensor>,
    {
        let goes_on = AtomicBool::new(false);
        let mut course = Course::default();
        let whole = self.job(&goes_on);
        let mut programs = Programs::new(self.program, self.width);
        // With the ranks for which the program was that it had.
        let mut kept: Option<(WorkerState<S, D>, Vec<Rank>)> = None;
        let mut rank = Rank(0);
        while let Some(met) = meetings.meet().map_err(|e| e.into_fault(rank))? {
            let Meeting { mut comm, is_first, present } = met;
            rank = comm.rank();
            self.check_steps(rank)?;
            let is_whole = present.len() == comm.n_ranks() as usize;
            let made = if self.training.shard_optimizer && !is_whole {
                Err("fewer ranks would share a sharded optimizer out in other parts".to_string())
            } else {
                programs.make(&present).map_err(|why| why.to_string())
            };
            if let Err(why) = made {
                let message = format!("{why}. Start again from the last checkpoint");
                let fault = Fault::new(Class::PeerLost, rank, message);
                comm.abort(&fault);
                return Err(fault);
            }
            let job = |present: &[Rank]| {
                let (program, width) = programs.of(present);
                Job { program, width, ..whole }
            };
            let now = job(&present);
            let (mut worker, before) = match kept.take() {
                Some((kept, before)) => (Worker::rejoin(job(&before), comm, kept), before),
                None => (Worker::new(now, device.clone(), comm, &mut stage)?, present.clone()),
            };
            let start = is_first.then_some(0);
            let recovered = worker.recover_with(now, start, &mut stage);
            let went_on = recovered.and_then(|recovered| {
                // Behind what makes it a rank with a state, which a death meanwhile must not undo.
                if is_first {
                    self.check_names(&mut worker, rank)?;
                }
                self.go_on(&mut worker, &mut course, recovered, rank)
            });
            if let Err(fault) = &went_on {
                worker.abort(fault);
            }
            let has_changed = std::ptr::eq(worker.program(), now.program);
            kept = Some((worker.leave(), if has_changed { present } else { before }));
            match went_on {
                Ok(()) => break,
                Err(fault) if fault.is_death() => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(match kept.filter(|_| course.next == self.training.steps || course.stops) {
            Some((kept, _)) => self.trained(&kept, course),
            None => Trained { reports: course.reports, weights: BTreeMap::new() },
        })
    }

    /// From a meeting to the end, or to the next death.
    fn go_on<S, D, C>(
        &self,
        worker: &mut Worker<'_, S, D, C>,
        course: &mut Course,
        recovered: Recovered,
        rank: Rank,
    ) -> Result<(), Fault>
    where
        S: Stage<Tensor = D::Tensor, Item = I>,
        D: Device,
        C: Comm<D::Tensor>,
    {
        let Recovered { next, last, .. } = recovered;
        let is_root = rank == Rank(0);
        let known = course.next.min(next);
        course.reports.retain(|report| report.step < next); // those of steps that are computed again
        self.note(course, last.into_iter().filter(|report| report.step >= known), is_root);
        course.next = next;
        self.run(worker, course, is_root)?;
        // Who leaves is asked for nothing any more, since all have done all.
        worker.all_gather("the end", &[]).map(|_| ())
    }

    /// Refuses steps that are not whole windows of the program: the last window would train some that nobody asked for.
    fn check_steps(&self, rank: Rank) -> Result<(), Fault> {
        let (steps, window) = (self.training.steps, self.program.window().n_steps());
        match steps.is_multiple_of(u64::from(window)) {
            true => Ok(()),
            false => {
                let why = format!(
                    "the program has a window of {window} steps, and {steps} steps are no whole windows: choose a multiple of {window}"
                );
                Err(Fault::new(Class::Usage, rank, why))
            }
        }
    }

    /// Refuses parameters that are not known by their names, on all ranks alike.
    fn check_names<S, D, C>(
        &self,
        worker: &mut Worker<'_, S, D, C>,
        rank: Rank,
    ) -> Result<(), Fault>
    where
        S: Stage<Tensor = D::Tensor, Item = I>,
        D: Device,
        C: Comm<D::Tensor>,
    {
        let held = self.stages().filter_map(|id| Some((id.0, worker.held(id)?.0)));
        let own = held.map(|(id, params)| {
            let own = params.iter().filter(|param| !param.tied);
            (id, own.map(|param| param.name.clone()).collect())
        });
        let own: BTreeMap<u16, Vec<String>> = own.collect();
        let internal = |e: serde_json::Error| Fault::new(Class::Internal, rank, e.to_string());
        let own = serde_json::to_vec(&own).map_err(internal)?;
        let mut by_stage: BTreeMap<u16, Vec<String>> = BTreeMap::new();
        for (from, names) in (0..).map(Rank).zip(worker.all_gather("names of parameters", &own)?) {
            by_stage.extend(serde_json::from_slice::<BTreeMap<_, _>>(&names).map_err(|_| {
                let message = format!("{from} sent names that cannot be read");
                Fault { peer: Some(from), ..Fault::new(Class::Mismatch, rank, message) }
            })?);
        }
        let names = by_stage
            .iter()
            .flat_map(|(stage, names)| names.iter().map(|name| (StageId(*stage), name.as_str())));
        name_conflict(names).map_or(Ok(()), |why| Err(Fault::new(Class::Usage, rank, why)))
    }

    fn stages(&self) -> impl Iterator<Item = StageId> + use<'_, I> {
        (0..self.program.placement().n_stages()).map(|id| StageId(id as u16))
    }

    /// Runs what is left to run.
    fn run<S, D, C>(
        &self,
        worker: &mut Worker<'_, S, D, C>,
        course: &mut Course,
        is_root: bool,
    ) -> Result<(), Fault>
    where
        S: Stage<Tensor = D::Tensor, Item = I>,
        D: Device,
        C: Comm<D::Tensor>,
    {
        while course.next < self.training.steps && !course.stops {
            let trained = worker.run(course.next)?;
            course.stops = trained.is_empty();
            self.note(course, trained, is_root);
        }
        Ok(())
    }

    fn note(
        &self,
        course: &mut Course,
        reports: impl IntoIterator<Item = StepReport>,
        is_root: bool,
    ) {
        for report in reports {
            if let Some(observe) = self.observe.filter(|_| is_root) {
                observe(&report);
            }
            (course.stops, course.next) = (report.stop, report.step + 1);
            course.reports.push(report);
        }
    }

    fn job<'a>(&'a self, goes_on: &'a AtomicBool) -> Job<'a, I> {
        Job {
            program: self.program,
            width: self.width,
            micro_batch_size: self.micro_batch_size,
            training: &self.training,
            data: self.data,
            patience: self.patience,
            stop: self.stop.unwrap_or(goes_on),
            own_work: self.own_work,
            epoch: Instant::now(),
        }
    }

    fn trained<S, D>(&self, kept: &WorkerState<S, D>, course: Course) -> Trained<S::Tensor>
    where
        S: Stage<Item = I>,
    {
        let held = self.stages().filter_map(|id| kept.held(id)).flat_map(|(params, weights)| {
            params.iter().map(|param| param.name.clone()).zip(weights.iter().cloned())
        });
        Trained { reports: course.reports, weights: held.collect() }
    }
}

/// How far a rank has come.
#[derive(Default)]
struct Course {
    next: u64,
    stops: bool,
    reports: Vec<StepReport>,
}
