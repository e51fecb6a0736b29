//! One rank of a run.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::Result;
use chimera_core::comm::Comm;
use chimera_core::engine::{Fields, Job, StepReport, Worker, handshake, panicked};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::{Rank, StageId};
use chimera_core::kernels::Kernels;
use chimera_core::model::{Architecture, BertStage, Cut, Gpt2Stage, ModelError};
use chimera_core::stage::{Param, Stage};
use chimera_core::update::Update;

use super::log::Log;
use super::samples::HeldOut;
use super::trace::{Did, Recorder};
use super::trained::RankTrained;
use super::{Run, processes};
use crate::checkpoint::{Shares, State};

/// The last runs of the program whose timelines are kept.
const N_TIMELINES: usize = 10;

/// What is done with a run besides training.
pub(super) struct Watch<'r, O> {
    /// What all ranks must have in common.
    pub(super) greeting: Fields,
    pub(super) observe: Mutex<O>,
    pub(super) held_out: HeldOut,
    pub(super) recorder: Option<Recorder<'r>>,
    /// Whether each rank is a process, which knows nothing of the others but by messages.
    pub(super) by_processes: bool,
}

impl Run {
    /// Trains the row of the rank that `comm` is an end of.
    pub(super) fn train_rank<'r, K, O>(
        &'r self,
        job: Job<'r>,
        kernels: K,
        comm: &mut impl Comm<K::Tensor>,
        watch: &Watch<'r, O>,
    ) -> Result<RankTrained, Fault>
    where
        K: Kernels,
        O: FnMut(&StepReport) -> Result<()>,
    {
        let (model, rate, seed) = (self.model(), self.config().dropout, self.config().seed);
        let (k, sequence) = (kernels.clone(), model.context);
        match model.architecture {
            Architecture::Gpt2 => self.train_stages(job, kernels, comm, watch, |cut| {
                Ok(Gpt2Stage::new(k.clone(), model, sequence, cut)?.with_dropout(rate, seed))
            }),
            Architecture::Bert => self.train_stages(job, kernels, comm, watch, |cut| {
                let predictions = model.predictions(sequence);
                let stage = BertStage::new(k.clone(), model, sequence, predictions, cut)?;
                Ok(stage.with_dropout(rate, seed))
            }),
        }
    }

    fn train_stages<'r, K, S, O>(
        &'r self,
        job: Job<'r>,
        kernels: K,
        comm: &mut impl Comm<K::Tensor>,
        watch: &Watch<'r, O>,
        stage: impl Fn(Cut) -> Result<S, ModelError>,
    ) -> Result<RankTrained, Fault>
    where
        K: Kernels,
        S: Stage<Tensor = K::Tensor> + Clone,
        O: FnMut(&StepReport) -> Result<()>,
    {
        let rank = comm.rank();
        handshake(comm, &watch.greeting, Instant::now() + job.patience.first_step)?;
        let stages: Result<Vec<S>, _> = self.plan.cuts.iter().cloned().map(stage).collect();
        let stages = stages.map_err(|e| Fault::new(Class::Usage, rank, e.to_string()))?;
        let stage = |id: StageId| stages[id.index()].clone();
        let mut worker = Worker::new(job, kernels, comm, stage)?;
        if let Some(explain) = &self.explain {
            explain.follow(rank, worker.recent().clone());
        }
        let mut log = Log::open(self, rank)?;
        let trained = catch_unwind(AssertUnwindSafe(|| {
            self.train_worker(&mut worker, &stages, rank, watch, &mut log)
        }));
        if !matches!(trained, Ok(Ok(_)))
            && let Some(explain) = &self.explain
        {
            let _ = explain.write(rank); // that it cannot be written is nothing beside the fault
        }
        match &trained {
            Ok(trained) => log.end(trained.as_ref()),
            Err(panic) => log.line(panicked(rank, &**panic)),
        }
        trained.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// All steps from where the run begins.
    fn train_worker<'r, S, K, C, O>(
        &'r self,
        worker: &mut Worker<'r, S, K, C>,
        stages: &[S],
        rank: Rank,
        watch: &Watch<'r, O>,
        log: &mut Log,
    ) -> Result<RankTrained, Fault>
    where
        S: Stage<Tensor = K::Tensor>,
        K: Kernels,
        C: Comm<K::Tensor>,
        O: FnMut(&StepReport) -> Result<()>,
    {
        if let Some(initial) = &self.initial {
            let unread = |e: anyhow::Error| Fault::new(Class::Io, rank, format!("{e:#}"));
            worker.set_weights(|param| initial.values(param).map_err(unread))?;
        }
        if let Some(checkpoint) = &self.start {
            worker.restore(checkpoint.manifest().counts(), |param| {
                let tensor = checkpoint.tensor(param);
                tensor.map_err(|e| Fault::new(Class::Checkpoint, rank, e.to_string()))
            })?;
        }
        if self.config().check_replicas > 0 {
            worker.check_replicas()?;
        }
        let n_steps = self.config().steps;
        let saver = self.saver.as_ref();
        let mut shares = saver.filter(|_| watch.by_processes).map(|saver| Shares::of(saver, rank));
        let mut trained = RankTrained::default();
        let (mut step, mut stop) = (self.first_step(), false);
        while step < n_steps && !stop {
            let began = step;
            let is_whole = n_steps - step >= u64::from(self.program().window().n_steps());
            let mut program = self.program();
            if let Some(last) = self.plan.last.as_ref().filter(|_| !is_whole) {
                worker.set_program(last)?;
                program = last;
            }
            let ran = worker.run(step);
            if let Err(fault) = &ran
                && fault.class == Class::NonFinite
                && program.window().update() == Update::Flush
                && let Some(shares) = shares.take()
            {
                // All ranks have agreed on it, so all can finish what they save. The fault counts.
                let _ = shares.finish(&mut processes::exchange(worker));
            }
            let mut reports = ran?;
            if let Some(at) = reports.iter().rposition(|report| self.is_evaluated(report.step)) {
                let (report, held_out) = (&mut reports[at], &watch.held_out);
                let loss =
                    worker.evaluate(report.step, held_out, held_out.batch.n_samples as u64)?;
                report.validation_loss = Some(loss);
            }
            log.steps(&reports, worker.events(), worker.waits());
            for report in reports {
                if rank == Rank(0)
                    && let Ok(mut observe) = watch.observe.lock()
                {
                    observe(&report).map_err(|e| match e.downcast::<Fault>() {
                        Ok(fault) => Fault { step: Some(report.step), ..fault },
                        Err(e) => Fault::new(Class::Io, rank, format!("{e:#}")),
                    })?;
                }
                (step, stop) = (report.step + 1, report.stop);
                trained.last = Some(report);
            }
            let every = self.config().check_replicas;
            if every > 0 && step / every > began / every {
                worker.check_replicas()?;
            }
            if let Some(recorder) = &watch.recorder {
                let steps = began..step;
                if watch.by_processes && recorder.wants(&steps) {
                    processes::record(worker, rank, recorder, program, steps)?;
                } else {
                    let (events, waits) = (worker.events(), worker.waits());
                    recorder.add(&Did { rank, program, steps, events, waits })?;
                }
            }
            if rank.index() < program.placement().n_workers() && is_whole {
                if trained.events.len() == N_TIMELINES {
                    trained.events.remove(0);
                }
                trained.events.push(worker.events().to_vec());
            }
            let is_done = step == n_steps;
            let state = State { began, step, is_done, is_last: is_done || stop };
            let is_due = saver.is_some_and(|saver| saver.is_due(&state));
            if is_due {
                log.line(format_args!("a checkpoint is begun: step {step} is next"));
            }
            let manifest = |counts| self.manifest(step, counts);
            if let Some(shares) = &mut shares {
                if is_due {
                    let spent = shares.spent(&mut processes::exchange(worker))?;
                    let (manifest, part) = (manifest(worker.counts()), worker.snapshot(spent)?);
                    shares.begin(&mut processes::exchange(worker), &state, manifest, part)?;
                }
                shares.poll(&mut processes::exchange(worker))?;
            } else if let Some(saver) = saver.filter(|_| is_due) {
                let counts = worker.counts();
                let n_ranks = self.config().width * self.config().depth;
                let manifest = || manifest(counts);
                saver.save(&state, manifest, n_ranks, rank, |spent| worker.snapshot(spent))?;
            }
        }
        if let Some(shares) = shares {
            trained.saved = shares.finish(&mut processes::exchange(worker))?;
        }
        for ((stage, index), values) in worker.gather_weights(n_steps)? {
            let params = stages.get(stage.index()).map(Stage::params).unwrap_or_default();
            let sized = |param: &&Param| param.n_elements() == values.len();
            let param = params.get(index).filter(sized).ok_or_else(|| {
                let message = format!("a rank sent {} values for {stage}", values.len());
                Fault::new(Class::Mismatch, rank, message)
            })?;
            trained.weights.push((param.clone(), values));
        }
        Ok(trained)
    }

    /// Whether the weights are evaluated after `step`.
    fn is_evaluated(&self, step: u64) -> bool {
        let every = self.config().eval_every;
        every > 0 && (step + 1).is_multiple_of(every)
    }
}
