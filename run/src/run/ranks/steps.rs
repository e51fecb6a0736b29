//! The steps of one rank, and the work between them: evaluating, reporting, tracing, saving.

use std::ops::Range;
use std::slice;

use anyhow::Result;
use chimera_core::comm::Comm;
use chimera_core::device::Device;
use chimera_core::engine::{Recovered, StepReport, StepTimeline, Worker};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_core::program::Program;
use chimera_core::stage::{Param, Stage};
use chimera_core::update::Update;
use chimera_formats::checkpoint::{Share, State};
use chimera_settings::Survive;

use super::gather;
use super::in_turn::InTurn;
use crate::observe::{Did, Log};
use crate::run::Run;
use crate::run::progress::trained::{RankRun, RankTrained};
use crate::run::progress::watch::{HeldOut, Watch};
use crate::run::survivor::Survivor;
use crate::run::workload::subject::Subject;

/// The number of last runs of the program whose timelines are kept.
const N_TIMELINES: u64 = 10;

/// The state of one rank during its steps.
pub(crate) struct Steps<'s, 'p, 'r, S: Subject, T: Stage, D, C> {
    pub(crate) run: &'r Run<S>,
    pub(crate) worker: &'s mut Worker<'p, T, D, C>,
    pub(crate) recover: &'s mut Recover<'s, 'p, T, D, C>,
    pub(crate) rank: Rank,
    pub(crate) watch: &'s Watch<'r, S::Item>,
    pub(crate) log: &'s mut Log<'r>,
    pub(crate) survivor: &'s mut Survivor,
    /// The saving of this rank, if it is a process.
    pub(crate) share: Option<Share>,
    /// The step after the last sound one. A checkpoint that was due since then is still due.
    pub(crate) since: u64,
}

/// Brings all ranks to one step, each with the stages that it is to hold: [`Worker::recover_with`].
pub(crate) type Recover<'s, 'p, T, D, C> =
    dyn FnMut(&mut Worker<'p, T, D, C>, Option<u64>) -> Result<Recovered, Fault> + 's;

/// The point where a rank begins.
struct NextStep {
    /// The step to train next.
    step: u64,
    /// Whether the run is to stop before that.
    stop: bool,
    /// The step before, if some rank has not done all the work after it.
    unsettled: Vec<StepReport>,
}

impl<'p, 'r: 'p, S, T, D, C> Steps<'_, 'p, 'r, S, T, D, C>
where
    S: Subject,
    T: Stage<Tensor = D::Tensor, Item = S::Item>,
    D: Device,
    C: Comm<D::Tensor>,
{
    /// Trains all steps from the current one. If the weights are `initial`, they are set first.
    pub(crate) fn train(mut self, initial: bool) -> Result<RankTrained, Fault> {
        let trained = self.train_and_save(initial);
        if trained.is_err() && self.share.as_ref().is_some_and(Share::is_unfinished) {
            self.survivor.settled = 0; // the ranks that meet again start the save again
        }
        trained
    }

    /// Trains all steps, makes each save that is due, and finishes the last save.
    fn train_and_save(&mut self, initial: bool) -> Result<RankTrained, Fault> {
        let (run, rank) = (self.run, self.rank);
        let n_steps = run.config().training.steps;
        let NextStep { mut step, mut stop, mut unsettled } = self.begin(initial)?;
        // This is the same on all ranks, even on a replacement for a dead one.
        self.since = step.saturating_sub(self.worker.n_skipped_in_a_row());
        let mut in_turn = InTurn::of(&run.course);
        let mut saved = None;
        if !unsettled.is_empty() {
            self.tell(&mut unsettled)?;
            saved = self.settle(&unsettled, stop)?;
        }
        while step < n_steps && !stop {
            let began = step;
            let is_whole = n_steps - step >= u64::from(run.program().window().n_steps());
            if let Some(last) = run.course.last.as_ref().filter(|_| !is_whole) {
                self.worker.set_program(last)?;
            }
            let is_given = in_turn.as_ref().is_none_or(InTurn::is_given);
            if let Some(in_turn) = &in_turn {
                self.worker.set_program(in_turn.program())?;
            }
            let program = self.worker.program();
            self.worker.time_kernels(self.times_kernels(step, program));
            let reports = self.run(program, step)?;
            if reports.is_empty() {
                self.survivor.trained.has_discarded = self.worker.has_discarded();
                self.save_stopped(step, saved)?;
                break;
            }
            for report in &reports {
                (step, stop) = (report.step + 1, report.stop);
                if report.step > run.first_step() {
                    self.survivor.trained.keep_time(report.step_s); // the first one warms up
                }
            }
            if let Some(in_turn) = &mut in_turn {
                reports.iter().for_each(|report| in_turn.took(report.step_s - report.copy_s));
                self.survivor.trained.in_turn = Some(in_turn.k());
            }
            let every = run.config().replicas.check_replicas;
            if every > 0 && step / every > began / every {
                self.worker.check_replicas()?;
            }
            // Steps of fewer ranks, and steps by another program, do not belong in a picture of all.
            let is_whole_run = self.survivor.fewer.is_none() && is_given;
            if is_whole_run {
                let program = if is_whole { run.program() } else { run.last_program() };
                self.trace(program, began..step)?;
            }
            let is_near_end = n_steps - step < N_TIMELINES * (step - began) && is_whole_run;
            if rank.index() < program.placement().n_workers() && is_whole && is_near_end {
                self.keep_timeline(began, &reports)?;
            }
            saved = self.settle(&reports, stop)?.or(saved);
        }
        self.survivor.trained.n_steps = step;
        self.survivor.trained.choose_runs();
        if let Some(share) = &mut self.share {
            let saved = share.finish(Some(&mut gather::all_gather(self.worker)))?;
            // The last save may have ended before a death, and then none is begun again.
            let trained = &mut self.survivor.trained;
            trained.saved = saved.or(trained.saved.take());
        }
        let weights = self.weights(n_steps)?;
        Ok(RankTrained { weights, ..self.survivor.trained.clone() })
    }

    /// Finds the step that is to be trained next, together with the other ranks if deaths are survived.
    fn begin(&mut self, initial: bool) -> Result<NextStep, Fault> {
        let first = self.run.first_step();
        if initial && !self.survivor.joins {
            self.set_initial_weights()?;
        }
        if self.run.config().devices.survive == Survive::Off {
            self.check_initial_weights()?;
            return Ok(NextStep { step: first, stop: false, unsettled: Vec::new() });
        }
        let start = (!self.survivor.joins).then_some(first);
        let Recovered { next, last, replaced } = (self.recover)(self.worker, start)?;
        if let Some(recorder) = &self.watch.recorder {
            recorder.resume(next, self.survivor.why_a_gap(&replaced));
        }
        if next == first {
            self.check_initial_weights()?;
        }
        self.survivor.trained.runs.clear(); // useless without those of all ranks
        let settled = self.survivor.settled.to_le_bytes();
        let all = self.worker.all_gather("recovery", &settled)?;
        let is_settled = all.iter().all(|of_rank| *of_rank == next.to_le_bytes());
        let last = last.filter(|_| next > first);
        let stop = last.as_ref().is_some_and(|report| report.stop);
        let unsettled = last.into_iter().filter(|_| !is_settled).collect();
        Ok(NextStep { step: next, stop, unsettled })
    }

    /// Sets the initial weights, unless they are drawn at random.
    fn set_initial_weights(&mut self) -> Result<(), Fault> {
        let (run, rank) = (self.run, self.rank);
        if let Some(initial) = &run.initial {
            let unread = |e: anyhow::Error| Fault::new(Class::Io, rank, format!("{e:#}"));
            let seed = run.config().training.seed;
            self.worker.set_weights(|param| initial.values(param, seed).map_err(unread))?;
        }
        if let Some(checkpoint) = &run.start {
            self.worker.restore(checkpoint.manifest().counts(), |param| {
                let tensor = checkpoint.tensor(param, &self.run.config().training.optimizer);
                tensor.map_err(|e| Fault::new(Class::Checkpoint, rank, e.to_string()))
            })?;
        }
        Ok(())
    }

    /// Compares the initial weights on all ranks that hold them, unless that is switched off.
    fn check_initial_weights(&mut self) -> Result<(), Fault> {
        match self.run.config().replicas.check_replicas {
            0 => Ok(()),
            _ => self.worker.check_replicas(),
        }
    }

    /// Saves after steps that were trained, if a save is due. Returns the number of steps after which it saved.
    fn settle(&mut self, reports: &[StepReport], is_last: bool) -> Result<Option<u64>, Fault> {
        let (Some(first), Some(last)) = (reports.first(), reports.last()) else { return Ok(None) };
        let (began, step) = (first.step.min(self.since), last.step + 1);
        let is_done = step == self.run.config().training.steps;
        let (is_last, is_skipped) = (is_done || is_last, last.skipped.is_some());
        let state = State { began, step, is_done, is_last, is_skipped };
        let is_saved = self.save(&state)?;
        self.since = state.next_began();
        self.survivor.settled = step;
        self.survivor.trained.last = Some(last.clone());
        Ok(is_saved.then_some(step))
    }

    /// Runs the program once, from `step`, and reports its steps.
    fn run(&mut self, program: &Program, step: u64) -> Result<Vec<StepReport>, Fault> {
        let ran = self.worker.run(step);
        if let Err(fault) = &ran
            && fault.class == Class::NonFinite
            && program.window().update() == Update::Flush
            && let Some(mut share) = self.share.take()
        {
            // All ranks have agreed on the fault, so all can finish the save. The fault is what counts.
            let _ = share.finish(Some(&mut gather::all_gather(self.worker)));
        }
        let mut reports = ran?;
        if self.log.is_kept() && !self.worker.bordered_steps().is_empty() {
            for (report, ran) in reports.iter().zip(self.worker.bordered_steps()) {
                self.log.steps(slice::from_ref(report), &ran.events, &ran.waits);
            }
        } else if self.log.is_kept() {
            let (events, waits, _) = self.worker.timeline()?;
            self.log.steps(&reports, events, waits);
        }
        self.tell(&mut reports)?;
        Ok(reports)
    }

    /// Evaluates if that is due, and lets rank 0 report steps that it has not reported. The loss
    /// goes to the last step: only its weights can be evaluated in a window.
    fn tell(&mut self, reports: &mut [StepReport]) -> Result<(), Fault> {
        if let Some(HeldOut { data, n_samples }) = &self.watch.held_out
            && reports.iter().any(|report| self.is_evaluated(report.step))
            && let Some(report) = reports.last_mut()
        {
            let loss = self.worker.evaluate(report.step, &**data, *n_samples)?;
            report.validation_loss = Some(loss);
        }
        if self.rank == Rank(0)
            && let Ok(mut observe) = self.watch.observe.lock()
        {
            for report in reports {
                if report.step < self.survivor.told {
                    self.survivor.replaced.append(&mut report.recoveries.replaced);
                    continue;
                }
                report.recoveries.replaced.append(&mut self.survivor.replaced);
                observe(report).map_err(|e| match e.downcast::<Fault>() {
                    Ok(fault) => Fault { step: Some(report.step), ..fault },
                    Err(e) => Fault::new(Class::Io, self.rank, format!("{e:#}")),
                })?;
                self.survivor.told = report.step + 1;
            }
        }
        Ok(())
    }

    /// Returns true if an evaluation is due after `step`.
    fn is_evaluated(&self, step: u64) -> bool {
        let every = self.run.config().output.eval_every;
        every > 0 && (step + 1).is_multiple_of(every)
    }

    /// Returns true if kernels are timed in a run of the program from `step` on.
    fn times_kernels(&self, step: u64, program: &Program) -> bool {
        let steps = step..step + u64::from(program.window().n_steps());
        let recorder = self.watch.recorder.as_ref();
        self.run.config().times_kernels() && recorder.is_some_and(|recorder| recorder.wants(&steps))
    }

    /// Records the ops of `steps`, a run of `program`, if there is a trace: step by step if a
    /// border was put between them.
    fn trace(&mut self, program: &'r Program, steps: Range<u64>) -> Result<(), Fault> {
        let recorder = self.watch.recorder.as_ref().filter(|recorder| recorder.wants(&steps));
        let Some(recorder) = recorder else { return Ok(()) };
        let n_bordered = self.worker.bordered_steps().len();
        let (program, runs): (_, Vec<Range<u64>>) = match program.bordered() {
            Some(bordered) if n_bordered > 0 => {
                (bordered, steps.map(|step| step..step + 1).take(n_bordered).collect())
            }
            _ => (program, vec![steps]),
        };
        let wanted = runs.into_iter().enumerate().filter(|(_, steps)| recorder.wants(steps));
        for (number, steps) in wanted {
            let rank = self.rank;
            let (events, waits, kernels) = match self.worker.bordered_steps().get(number) {
                Some(StepTimeline { events, waits, kernels }) => (&**events, &**waits, &**kernels),
                None => self.worker.timeline()?,
            };
            let did = Did { rank, program, steps, events, waits, kernels };
            if self.watch.by_processes {
                let (own, steps) = (gather::written(&did)?, did.steps);
                gather::record(self.worker, rank, recorder, (program, steps), &own)?;
            } else {
                recorder.add(&did)?;
            }
        }
        Ok(())
    }

    /// Keeps the ops of this rank in the run of the program that began with a step, or in each step
    /// if a border was put between them.
    fn keep_timeline(&mut self, began: u64, reports: &[StepReport]) -> Result<(), Fault> {
        let trained = &mut self.survivor.trained;
        let bordered = self.worker.bordered_steps();
        if !bordered.is_empty() {
            for (report, ran) in reports.iter().zip(bordered) {
                let (events, waits) = (ran.events.clone(), ran.waits.clone());
                trained.bordered_runs.push(RankRun { step: report.step, events, waits });
            }
            let n_over = trained.bordered_runs.len().saturating_sub(N_TIMELINES as usize);
            trained.bordered_runs.drain(..n_over);
            return Ok(());
        }
        let (events, waits, _) = self.worker.timeline()?;
        let (events, waits) = (events.to_vec(), waits.to_vec());
        trained.runs.push(RankRun { step: began, events, waits });
        Ok(())
    }

    /// Saves a run that ends before `step`, unless that step was `saved` last, or the run stands
    /// where it began and can begin there again.
    fn save_stopped(&mut self, step: u64, saved: Option<u64>) -> Result<(), Fault> {
        self.log.line(format_args!("the run is to stop: step {step} is not trained"));
        let is_saved =
            saved == Some(step) || step == self.run.first_step() && self.run.can_begin_again();
        // Ranks may see different files.
        let all = self.worker.all_gather("checkpoint", &[u8::from(is_saved)])?;
        if all.first().is_some_and(|of_root| of_root == &[1]) {
            return Ok(());
        }
        let (began, is_done, is_last, is_skipped) = (step, false, true, false);
        self.save(&State { began, step, is_done, is_last, is_skipped }).map(drop)
    }

    /// Begins a checkpoint if one is due, and continues one that was begun. Returns true if one was due.
    fn save(&mut self, state: &State) -> Result<bool, Fault> {
        let Some(saver) = &self.run.saver else { return Ok(false) };
        let is_due = saver.is_due(state);
        if is_due {
            self.log.line(format_args!("a checkpoint is begun: step {} is next", state.step));
        }
        let counts = self.worker.counts();
        let manifest = || self.run.manifest(state.step, counts);
        if let Some(share) = &mut self.share {
            if is_due {
                let spent = share.spent(0, Some(&mut gather::all_gather(self.worker)))?;
                let parts = vec![self.worker.snapshot(spent)?];
                let all_gather = &mut gather::all_gather(self.worker);
                share.begin(Some(all_gather), state, manifest(), parts)?;
            }
            share.poll(Some(&mut gather::all_gather(self.worker)))?;
        } else if is_due {
            let n_ranks = self.run.config().schedule.width * self.run.config().schedule.depth;
            let part = |spent| self.worker.snapshot(spent);
            saver.save(state, manifest, n_ranks, self.rank, part)?;
        }
        Ok(is_due)
    }

    /// Returns the weights of the whole model, on rank 0.
    fn weights(&mut self, step: u64) -> Result<Vec<(Param, Vec<f32>)>, Fault> {
        let params = self.run.subject.params();
        let mut weights = Vec::new();
        for ((stage, index), elements) in self.worker.gather_weights(step)? {
            let param = params.get(stage.index()).and_then(|params| params.get(index));
            let sized = |param: &&Param| elements.dtype.fits(&elements.words, param.n_elements());
            let param = param.filter(sized).ok_or_else(|| {
                let message = format!("a rank sent {} words for {stage}", elements.words.len());
                Fault::new(Class::Mismatch, self.rank, message)
            })?;
            weights.push((param.clone(), elements.to_f32(param.n_elements())));
        }
        Ok(weights)
    }
}
