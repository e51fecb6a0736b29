//! The result of a run.

use std::collections::HashSet;
use std::mem::take;
use std::path::PathBuf;

use anyhow::{Result, bail};
use chimera_core::analyze::{
    Event, IdleTime, MeasuredCosts, Timeline, Wait, measured_idle, simulate,
};
use chimera_core::device::KernelTime;
use chimera_core::engine::StepReport;
use chimera_core::fault::Fault;
use chimera_core::program::Program;
use chimera_core::stage::Param;
use serde::{Deserialize, Serialize};

use crate::run::{Run, Subject};

/// The number of last steps whose times are kept: the times of a long run would fill memory.
const N_TIMES: usize = 100;

/// The result of a run.
pub struct Trained {
    /// Every tensor by its parameter, in the order of the stages.
    pub weights: Vec<(Param, Vec<f32>)>,
    /// Steps that the weights were trained for, including those before this run.
    pub n_steps: u64,
    /// The report of the last step, if this run has trained any.
    pub last: Option<StepReport>,
    /// Seconds of each of the last steps of this run, at most 100, without its first one.
    pub steps_s: Vec<f64>,
    /// Whether a further step was begun, and discarded when the run was stopped.
    pub has_discarded: bool,
    /// Forwards in turn of the last program, if that number was chosen while training.
    pub in_turn: Option<u32>,
    /// The ops of the workers of the first group in the last runs of [a
    /// program](Trained::drawn_program), each from its own start.
    pub timelines: Vec<Timeline>,
    /// The first step of the last timeline.
    pub drawn_step: Option<u64>,
    /// Whether the timelines are of single steps with a border, because all of the last windows had one.
    pub is_bordered: bool,
    /// The waits of these workers and their causes, by timeline.
    pub waits: Vec<Vec<Wait>>,
    /// Time of each kernel in the steps that the trace shows, over all ranks, if kernels are timed.
    /// The longest comes first.
    pub kernels: Vec<KernelTime>,
    /// Bytes of memory that this process held before the training, and its peak, if workers are its
    /// threads and the system reports it.
    pub process: Option<[f64; 2]>,
    /// The share of its cores' time that this process got. `None` unless the system counts that and
    /// the training computed for long enough.
    pub core_share: Option<f64>,
    /// The last checkpoint, if the run saves any.
    pub checkpoint: Option<PathBuf>,
    /// The error if the checkpoint or the trace could not be written. The weights exist all the same.
    pub unwritten: Option<Fault>,
}

/// The result of the last save, if there was one.
pub(crate) type Saved = Option<Result<PathBuf, Fault>>;

impl<S: Subject> Run<S> {
    /// Returns the weights in the checkpoint at which the run begins.
    ///
    /// # Errors
    /// If it does not begin at one, or the checkpoint cannot be read.
    pub fn trained_before(&self) -> Result<Trained> {
        let Some(checkpoint) = &self.start else { bail!("no checkpoint has the trained weights") };
        let kept = checkpoint.shapes();
        let (mut weights, mut names) = (Vec::new(), HashSet::new());
        for param in self.subject.params().into_iter().flatten() {
            // A tensor that two stages share is kept once, by the name of either.
            let is_elsewhere = param.tied && !kept.contains_key(&param.name);
            if !is_elsewhere && names.insert(param.name.clone()) {
                let values = checkpoint.weights(&param.name, &param.shape)?;
                weights.push((param, values));
            }
        }
        let checkpoint = Some(checkpoint.path().to_path_buf());
        Ok(Trained { weights, checkpoint, ..Trained::after(self.first_step()) })
    }
}

impl Trained {
    /// Returns a result with only a number of steps.
    fn after(n_steps: u64) -> Trained {
        Trained {
            weights: Vec::new(),
            n_steps,
            last: None,
            steps_s: Vec::new(),
            has_discarded: false,
            in_turn: None,
            timelines: Vec::new(),
            drawn_step: None,
            is_bordered: false,
            waits: Vec::new(),
            kernels: Vec::new(),
            process: None,
            core_share: None,
            checkpoint: None,
            unwritten: None,
        }
    }

    /// Adds the last checkpoint and the kernels of the trace, or the errors of writing them.
    pub(crate) fn with(mut self, saved: Saved, traced: Result<Vec<KernelTime>, Fault>) -> Trained {
        let (checkpoint, unsaved) = match saved {
            Some(Ok(checkpoint)) => (Some(checkpoint), None),
            Some(Err(fault)) => (None, Some(fault)),
            None => (None, None),
        };
        self.checkpoint = checkpoint;
        let (kernels, untraced) = match traced {
            Ok(kernels) => (kernels, None),
            Err(fault) => (Vec::new(), Some(fault)),
        };
        self.kernels = kernels;
        self.unwritten = unsaved.or(untraced);
        self
    }

    /// Returns the program that the timelines are of.
    pub fn drawn_program<'r, S: Subject>(&self, run: &'r Run<S>) -> &'r Program {
        let program = run.program();
        program.bordered().filter(|_| self.is_bordered).unwrap_or(program)
    }

    /// Returns the measured makespan over the makespan that the measured ops would have without any
    /// overhead: the median over the last steps.
    pub fn overhead(&self, program: &Program) -> Option<f64> {
        let ratio =
            |t: &Timeline| t.makespan() / simulate(program, &MeasuredCosts::of(t)).makespan();
        let mut ratios: Vec<f64> =
            self.timelines.iter().map(ratio).filter(|r| r.is_finite()).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied()
    }

    /// Returns the median seconds of the last steps, if this run has trained more than one.
    pub(crate) fn median_step(&self) -> Option<f64> {
        let mut steps = self.steps_s.clone();
        steps.sort_by(f64::total_cmp);
        steps.get(steps.len() / 2).copied()
    }

    /// Returns the bubble of the last run of the program, split by cause, as shares of the time of all workers.
    pub fn bubble(&self, program: &Program) -> Option<IdleTime> {
        let (timeline, waits) = (self.timelines.last()?, self.waits.last()?);
        Some(IdleTime::shares(&measured_idle(program, timeline, waits), timeline.makespan()))
    }
}

/// The result of one rank.
#[derive(Clone, Default)]
pub struct RankTrained {
    /// Steps that the weights were trained for.
    pub(crate) n_steps: u64,
    pub(crate) last: Option<StepReport>,
    /// Seconds of each of the last steps, without the first.
    pub(crate) steps_s: Vec<f64>,
    /// Whether a further step was begun and discarded.
    pub(crate) has_discarded: bool,
    pub(crate) in_turn: Option<u32>,
    pub(crate) weights: Vec<(Param, Vec<f32>)>,
    /// The ops of a rank of the first group, by run of the program.
    pub(crate) runs: Vec<RankRun>,
    /// The ops of a rank of the first group in windows that were trained step by step, with a border.
    pub(crate) bordered_runs: Vec<RankRun>,
    /// Whether `runs` are steps with a border.
    pub(crate) is_bordered: bool,
    /// The last save, if ranks save together.
    pub(crate) saved: Saved,
}

/// The ops and waits of a rank in a run of the program.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct RankRun {
    /// The first step.
    pub(crate) step: u64,
    pub(crate) events: Vec<Event>,
    pub(crate) waits: Vec<Wait>,
}

impl RankTrained {
    /// Keeps the time of a step.
    pub(crate) fn keep_time(&mut self, step_s: f64) {
        self.steps_s.push(step_s);
        let n_over = self.steps_s.len().saturating_sub(N_TIMES);
        self.steps_s.drain(..n_over);
    }

    /// Uses the steps with a border as the runs of the program, if there are no others.
    pub(crate) fn choose_runs(&mut self) {
        if self.runs.is_empty() && !self.bordered_runs.is_empty() {
            (self.runs, self.is_bordered) = (take(&mut self.bordered_runs), true);
        }
        self.bordered_runs.clear();
    }

    /// Returns the result of another process, which sends only its runs.
    pub(crate) fn did(runs: Vec<RankRun>) -> RankTrained {
        RankTrained { runs, ..RankTrained::default() }
    }
}

pub(crate) fn merge(ranks: Vec<RankTrained>) -> Result<Trained> {
    let Some(first) = ranks.first() else { bail!("no rank was trained") };
    let (n_steps, last, has_discarded) = (first.n_steps, first.last.clone(), first.has_discarded);
    let (steps_s, in_turn) = (first.steps_s.clone(), first.in_turn);
    let (drawn_step, is_bordered) = (first.runs.last().map(|run| run.step), first.is_bordered);
    let n_timelines = first.runs.len();
    let mut timelines = vec![Timeline::default(); n_timelines];
    let mut waits = vec![Vec::new(); n_timelines];
    let mut weights = Vec::new();
    for rank in ranks {
        for (run, RankRun { events, waits: of_rank, .. }) in rank.runs.into_iter().enumerate() {
            let (Some(timeline), Some(waits)) = (timelines.get_mut(run), waits.get_mut(run)) else {
                break;
            };
            timeline.n_workers += 1;
            timeline.events.extend(events);
            waits.extend(of_rank);
        }
        weights.extend(rank.weights);
    }
    for (timeline, waits) in timelines.iter_mut().zip(&mut waits) {
        let start = timeline.events.iter().map(|e| e.start).fold(f64::INFINITY, f64::min);
        for event in &mut timeline.events {
            event.start -= start;
            event.end -= start;
        }
        for wait in waits {
            wait.start -= start;
            wait.end -= start;
        }
    }
    let after = Trained::after(n_steps);
    Ok(Trained {
        weights,
        last,
        steps_s,
        has_discarded,
        in_turn,
        timelines,
        drawn_step,
        is_bordered,
        waits,
        ..after
    })
}
