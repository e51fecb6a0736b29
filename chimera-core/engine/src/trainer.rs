//! Trains the stages of any model with any program: on threads, or as one rank of a transport.

mod checks;

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use chimera_schedule::ids::{Rank, StageId};
use chimera_schedule::lower::Programs;
use chimera_schedule::program::Program;

use crate::comm::{Comm, Endpoint, Meeting, Rendezvous, Threads};
use crate::device::{Device, DeviceError};
use crate::engine::{
    DoPiece, Job, Patience, Recovered, StepReport, Training, Worker, WorkerState, run_threads,
};
use crate::fault::{Class, Fault};
use crate::stage::{Data, Stage};

/// Settings of a training, and the ways to run it.
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
    /// The fingerprint of the program, once computed.
    fingerprint: OnceLock<String>,
}

type Observer<'t> = &'t (dyn Fn(&StepReport) + Sync);

/// Results of a training.
#[derive(Clone, Debug)]
pub struct Trained<T> {
    /// Reports of all steps, in order.
    pub reports: Vec<StepReport>,
    /// Weights by parameter name: of all stages after [`Trainer::on_threads`], and of the rank's
    /// own stages after [`Trainer::on_rank`].
    pub weights: BTreeMap<String, T>,
}

impl<'t, I: Copy + Send + Sync + 'static> Trainer<'t, I> {
    /// A training of `program` on samples of `data`.
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
            fingerprint: OnceLock::new(),
        }
    }

    /// Sets the hyperparameters: seed, number of steps, optimizer and learning rates.
    pub fn training(self, training: Training) -> Self {
        Trainer { training, ..self }
    }

    /// Sets the number of pipeline groups (data-parallel size), W.
    pub fn width(self, width: usize) -> Self {
        Trainer { width, ..self }
    }

    /// Sets the number of samples per micro-batch, B.
    pub fn micro_batch_size(self, micro_batch_size: usize) -> Self {
        Trainer { micro_batch_size, ..self }
    }

    /// Sets how long a rank waits for a peer before it calls the peer lost.
    pub fn patience(self, patience: Patience) -> Self {
        Trainer { patience, ..self }
    }

    /// Sets a flag that ends the training once true. The current step is discarded on all ranks if
    /// the program has the barrier and some rank has not reached its step sync, or else finished.
    pub fn stop_when(self, stop: &'t AtomicBool) -> Self {
        Trainer { stop: Some(stop), ..self }
    }

    /// Calls `observe` on rank 0 after every step.
    pub fn on_step(self, observe: Observer<'t>) -> Self {
        Trainer { observe: Some(observe), ..self }
    }

    /// Calls `own_work` for each piece of [other work](chimera_schedule::lower::fill).
    pub fn own_work(self, own_work: &'t DoPiece<'t>) -> Self {
        Trainer { own_work: Some(own_work), ..self }
    }

    /// Trains with one thread per rank; `device` opens its device, and `stage` makes a stage.
    ///
    /// Returns once all threads have ended, even if a rank fails. A stage, a device or data that
    /// never returns from a call keeps this function from returning, since a thread cannot be ended
    /// from outside. Give code that may hang a timeout of its own, or run each rank in a process
    /// ([`on_rank`](Trainer::on_rank)), where [`patience`](Trainer::patience) ends the others.
    ///
    /// A fault from `stage` need not know its rank: the rank that failed is filled in. Strings and
    /// device errors convert to faults by `?`.
    ///
    /// # Errors
    /// If parts of the training do not fit each other, or a rank fails, with the earliest cause. A
    /// panic is such a cause, with the step and the op in which it occurred.
    pub fn on_threads<S, D>(
        &self,
        device: impl Fn(Rank) -> Result<D, DeviceError> + Sync,
        stage: impl Fn(&D, StageId) -> Result<S, Fault> + Sync,
    ) -> Result<Trained<D::Tensor>, Fault>
    where
        S: Stage<Tensor = D::Tensor, Item = I>,
        D: Device,
    {
        self.check_settings(Rank(0))?;
        let n_ranks = self.program.placement().n_ranks(self.width);
        let n_ranks = u32::try_from(n_ranks).map_err(|_| {
            Fault::new(Class::Usage, Rank(0), format!("{n_ranks} ranks are too many"))
        })?;
        let ranks = run_threads(n_ranks, |comm: &mut Threads<D::Tensor>| {
            let device = device(comm.rank()).map_err(|e| e.into_fault(comm.rank()))?;
            self.train_rank(comm, device.clone(), |id| stage(&device, id))
        })?;
        let joined = ranks.into_iter().reduce(|mut all, other| {
            all.weights.extend(other.weights);
            all
        });
        Ok(joined.unwrap_or_else(|| Trained { reports: Vec::new(), weights: BTreeMap::new() }))
    }

    /// Trains as the rank of `comm`; `stage` makes the stages that the rank holds. Before the first
    /// step all ranks compare program, settings, parameters and initial weights.
    ///
    /// A rank that fails reports the cause to the others. A panic propagates to the caller, and the
    /// others learn nothing. To run code that may panic, catch the panic and pass
    /// [`panicked`](crate::fault::panicked) of it to `comm.abort`.
    ///
    /// # Errors
    /// If parts of the training do not fit each other, if ranks do not train the same, or if this
    /// rank or another one fails.
    pub fn on_rank<S, D, C>(
        &self,
        mut comm: C,
        device: D,
        stage: impl FnMut(StageId) -> Result<S, Fault>,
    ) -> Result<Trained<D::Tensor>, Fault>
    where
        S: Stage<Tensor = D::Tensor, Item = I>,
        D: Device,
        C: Comm<D::Tensor>,
    {
        let trained = self.train_rank(&mut comm, device, stage);
        if let Err(fault) = &trained {
            comm.abort(fault);
        }
        trained
    }

    /// Like [`on_rank`](Trainer::on_rank), but does not report faults to the others.
    fn train_rank<S, D, C>(
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
        self.check_settings(rank)?;
        let mut worker = Worker::new(self.job(&goes_on), device, comm, stage)?;
        worker.check_outset(&self.fields())?;
        let mut course = Course::default();
        self.run(&mut worker, &mut course, rank == Rank(0))?;
        Ok(self.trained(&worker.leave(), course))
    }

    /// Trains one rank, and goes on when others die. Replacements come to the next meeting and get
    /// weights and optimizer state from the replicas of their stages. The interrupted step is
    /// computed again, to the same bits. If ranks are missing from a meeting, the others train
    /// [what all would](chimera_schedule::lower::narrow()), up to the rounding of sums, until a
    /// meeting has all ranks again.
    ///
    /// After the death of rank 0, its observer may get the last step's report twice.
    ///
    /// # Errors
    /// The errors of [`on_rank`](Trainer::on_rank), except for the death of a rank. Also, if a
    /// replacement does not train the same; if no living rank holds some stage; or if the program
    /// does not let ranks be replaced: it must be synchronous, with the barrier. A sharded
    /// optimizer needs copies ([`shadow_every`](Training::shadow_every)), and all ranks at every
    /// meeting.
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
        // The state, with the ranks present when it had its program.
        let mut kept: Option<(WorkerState<S, D>, Vec<Rank>)> = None;
        let mut rank = Rank(0);
        while let Some(met) = meetings.meet().map_err(|e| e.into_fault(rank))? {
            let Meeting { mut comm, is_first, present } = met;
            rank = comm.rank();
            let made = self.make_program(&mut programs, &present, (rank, comm.n_ranks()));
            if let Err(fault) = made {
                comm.abort(&fault);
                return Err(fault);
            }
            let job = |present: &[Rank]| {
                let (program, width) = programs.of(present);
                Job { program, width, ..whole }
            };
            let now = job(&present);
            let (mut worker, before) = match kept.take() {
                Some((kept, before)) => (Worker::rejoin(job(&before), &mut comm, kept), before),
                None => match Worker::new(now, device.clone(), &mut comm, &mut stage) {
                    Ok(worker) => (worker, present.clone()),
                    Err(fault) => {
                        comm.abort(&fault);
                        return Err(fault);
                    }
                },
            };
            worker.compare_in_recoveries(self.fields());
            let start = is_first.then_some(0);
            let recovered = worker.recover_with(now, start, &mut stage);
            let went_on = recovered.and_then(|recovered| {
                // After the exchange that gives this rank a state, which no death must undo.
                if is_first {
                    worker.check_outset(&self.fields())?;
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

    /// Makes the program of the ranks that are present at a meeting.
    fn make_program(
        &self,
        programs: &mut Programs<'_>,
        present: &[Rank],
        (rank, n_ranks): (Rank, u32),
    ) -> Result<(), Fault> {
        self.check_settings(rank)?;
        let made = if self.training.shard_optimizer && present.len() < n_ranks as usize {
            Err("fewer ranks would shard the optimizer differently".to_string())
        } else {
            programs.make(present).map_err(|why| why.to_string())
        };
        made.map_err(|why| {
            let message = format!("{why}. Start again from the last checkpoint");
            Fault::new(Class::PeerLost, rank, message)
        })
    }

    /// Trains from a meeting to the end, or to the next death.
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
        course.reports.retain(|report| report.step < next); // reports of steps that are computed again
        self.note(course, last.into_iter().filter(|report| report.step >= known), is_root);
        course.next = next;
        self.run(worker, course, is_root)?;
        // No rank needs anything from a rank that leaves here, since all are done.
        worker.all_gather("the end", &[]).map(|_| ())
    }

    fn stages(&self) -> impl Iterator<Item = StageId> + use<'_, I> {
        (0..self.program.placement().n_stages()).map(|id| StageId(id as u16))
    }

    /// Runs the remaining steps.
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

/// The progress of a rank.
#[derive(Default)]
struct Course {
    next: u64,
    stops: bool,
    reports: Vec<StepReport>,
}
