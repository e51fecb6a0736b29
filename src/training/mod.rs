//! One training run on this machine: from settings to trained weights.

mod fit;
mod folder;
mod lock;
mod resume;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use chimera_backend_cuda::Candle;
use chimera_core::analyze::{Event, MeasuredCosts, Timeline, UniformCosts, simulate};
use chimera_core::comm::{Comm, Threads};
use chimera_core::engine::{Data, Job, Patience, StepReport, Training, Worker, run_threads};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::{Rank, StageId};
use chimera_core::kernels::Kernels;
use chimera_core::lower::{Lowering, Passes, Program, lower};
use chimera_core::model::{Gpt2Config, Gpt2Stage, cut};
use chimera_core::order::Search;
use chimera_core::schedule::{Shape, find};
use chimera_core::stage::Param;
use chimera_core::timetable::Timetable;

pub use folder::{Folder, Place};

use crate::auto::{AUTO, Report, auto};
use crate::checkpoint::{Checkpoint, Saver, State};
use crate::data::Corpus;
use crate::hf;
use crate::settings::Config;
use crate::timetable::{is_file, read};

/// The last runs of the program whose timelines are kept.
const N_TIMELINES: u64 = 10;

/// A run that has been checked as far as can be before it starts.
pub struct Run {
    config: Config,
    model: Gpt2Config,
    stages: Vec<Gpt2Stage<Candle>>,
    program: Program,
    search: Option<Report>,
    /// Of the steps at the end that do not make a whole window.
    last: Option<Program>,
    corpus: Corpus,
    training: Training,
    /// Where it begins, if not at the start.
    start: Option<Checkpoint>,
    saver: Option<Saver>,
    /// What to begin with, by name; empty if weights are drawn at random.
    weights: HashMap<String, Vec<f32>>,
}

/// What a run leaves.
pub struct Trained {
    /// Every tensor by its parameter, in order of the stages.
    pub weights: Vec<(Param, Vec<f32>)>,
    /// The last step's report.
    pub last: StepReport,
    /// What the workers of the first group did in the last runs of the program, each from its own start.
    pub timelines: Vec<Timeline>,
    /// The last checkpoint, if the run saves any.
    pub checkpoint: Option<PathBuf>,
}

impl Run {
    /// Checks settings, model, schedule, memory and data. Nothing is written.
    pub fn prepare(config: Config) -> Result<Run> {
        ensure!(
            config.device == "cpu",
            "device `{}` is not available: this build has `cpu` alone",
            config.device
        );
        ensure!(
            config.min_lr <= config.lr,
            "min-lr {} is above lr {}: the learning rate falls",
            config.min_lr,
            config.lr
        );
        let model = config.model();
        model.validate()?;
        let corpus = Corpus::open(&config.data, config.vocab, config.context)?;
        let window = config.window.min(u32::try_from(config.steps).unwrap_or(u32::MAX));
        let (timetable, search) = timetable(&config, window)?;
        ensure!(
            config.micro_batch_size.is_multiple_of(timetable.units_per_micro as usize),
            "scaling halving cuts micro-batches in two, but micro-batch-size {} is odd: choose an even one",
            config.micro_batch_size
        );
        let n_stages = timetable.placement.n_stages();
        let cuts = cut(&model, n_stages)?;
        let stage = |cut| Gpt2Stage::new(Candle::cpu(), &model, model.context, cut);
        let stages = cuts.iter().cloned().map(stage).collect::<Result<_, _>>()?;
        let training = Training {
            seed: config.seed,
            steps: config.steps,
            optimizer: config.optimizer,
            lr: config.lr,
            min_lr: config.min_lr,
            warmup: config.warmup,
            lr_schedule: config.lr_schedule,
            beta1: config.beta1,
            beta2: config.beta2,
            eps: config.eps,
            momentum: config.momentum,
            weight_decay: config.weight_decay,
            clip: (config.clip > 0.0).then_some(config.clip),
            check_finite: config.check_finite,
        };
        let whole = program(&config, &training, timetable)?;
        let last = rest(&config, whole.window().n_steps(), 0)?;
        let last = last.map(|timetable| program(&config, &training, timetable)).transpose()?;
        let program = whole;
        fit::check(&config, &model, &cuts, &program)?;
        let weights = match &config.init {
            Some(dir) => weights(dir, &model)?,
            None => HashMap::new(),
        };
        let (start, saver) = (None, None);
        Ok(Run {
            config,
            model,
            stages,
            program,
            last,
            search,
            corpus,
            training,
            start,
            saver,
            weights,
        })
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The sizes of the model.
    pub fn model(&self) -> &Gpt2Config {
        &self.model
    }

    /// What each worker does in a step, or in a window of steps.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// What the search for a schedule came to, if there was one.
    pub fn search(&self) -> Option<&Report> {
        self.search.as_ref()
    }

    /// The text.
    pub fn corpus(&self) -> &Corpus {
        &self.corpus
    }

    /// Tokens of one step over all groups.
    pub fn tokens_per_step(&self) -> u64 {
        let Config { width, micro_batches, micro_batch_size, context, .. } = &self.config;
        let factors = [width, micro_batches, micro_batch_size, context];
        factors.into_iter().fold(1, |n, factor| n.saturating_mul(*factor as u64))
    }

    /// Trains, telling `observe` of every step; `stop` ends it after the step or window under way. An error of
    /// `observe` ends the run too.
    pub fn train(
        &self,
        stop: &AtomicBool,
        observe: impl FnMut(&StepReport) -> Result<()> + Send,
    ) -> Result<Trained> {
        let n_ranks = (self.config.width * self.config.depth) as u32;
        let samples = self.samples();
        let later = Duration::try_from_secs_f64(self.config.timeout)?;
        let job = Job {
            program: &self.program,
            width: self.config.width,
            micro_batch_size: self.config.micro_batch_size,
            training: &self.training,
            data: &samples,
            patience: Patience { first_step: later.max(Patience::default().first_step), later },
            stop,
            epoch: Instant::now(),
        };
        let observe = Mutex::new(observe);
        let ranks = run_threads(n_ranks, |comm: &mut Threads<_>| {
            let rank = comm.rank();
            let pool = rayon::ThreadPoolBuilder::new().num_threads(self.config.threads).build();
            let pool = pool.map_err(|e| {
                let n = self.config.threads;
                let message =
                    format!("cannot start {n} compute thread(s): {e}; choose fewer --threads");
                Fault::new(Class::OutOfMemory, rank, message)
            })?;
            pool.install(|| self.train_rank(job, comm, &observe))
        });
        let saved = self.saver.as_ref().map_or(Ok(None), Saver::finish); // also of a run that failed
        Ok(Trained { checkpoint: saved?, ..merge(ranks?)? })
    }

    fn train_rank<O: FnMut(&StepReport) -> Result<()>>(
        &self,
        job: Job<'_>,
        comm: &mut Threads<<Candle as Kernels>::Tensor>,
        observe: &Mutex<O>,
    ) -> Result<RankTrained, Fault> {
        let rank = comm.rank();
        let stage = |id: StageId| self.stages[id.index()].clone();
        let mut worker = Worker::new(job, Candle::cpu(), comm, stage)?;
        worker.set_weights(|param| self.weights.get(&param.name).map(Vec::as_slice))?;
        if let Some(checkpoint) = &self.start {
            worker.restore(checkpoint.manifest().updates, |param| {
                let tensor = checkpoint.tensor(param);
                tensor.map_err(|e| Fault::new(Class::Checkpoint, rank, e.to_string()))
            })?;
        }
        let mut trained = RankTrained::default();
        let (mut step, mut stop) = (self.first_step(), false);
        while step < self.config.steps && !stop {
            let began = step;
            let is_whole = self.config.steps - step >= u64::from(self.program.window().n_steps());
            if let Some(last) = self.last.as_ref().filter(|_| !is_whole) {
                worker.set_program(last)?;
            }
            for report in worker.run(step)? {
                if rank == Rank(0)
                    && let Ok(mut observe) = observe.lock()
                {
                    observe(&report).map_err(|e| match e.downcast::<Fault>() {
                        Ok(fault) => Fault { step: Some(report.step), ..fault },
                        Err(e) => Fault::new(Class::Io, rank, format!("{e:#}")),
                    })?;
                }
                trained.last = Some(report);
                (step, stop) = (report.step + 1, report.stop);
            }
            if rank.index() < job.program.placement().n_workers() && is_whole {
                if trained.events.len() as u64 == N_TIMELINES {
                    trained.events.remove(0);
                }
                trained.events.push(worker.events().to_vec());
            }
            let is_done = step == self.config.steps;
            let state = State { began, step, is_done, is_last: is_done || stop };
            if let Some(saver) = self.saver.as_ref().filter(|saver| saver.is_due(&state))
                && rank.index() < self.config.depth
            {
                let manifest = || self.manifest(step, worker.n_updates());
                saver.save(&state, manifest, self.config.depth, rank, || worker.snapshot())?;
            }
        }
        trained.weights = worker.weights()?;
        Ok(trained)
    }
}

/// What the settings make of a timetable, proven.
fn program(config: &Config, training: &Training, timetable: Timetable) -> Result<Program> {
    let n_stages = timetable.placement.n_stages();
    let ends = vec![StageId(0), StageId(n_stages as u16 - 1)];
    let how = Lowering {
        sync: config.sync,
        barrier: training.needs_barrier(),
        tied: if config.tied && n_stages > 1 { vec![ends] } else { Vec::new() },
        max_peak: config.memory_cap,
        ..Lowering::default()
    };
    let Config { recompute, hoist, split_backward, .. } = *config;
    // A search has applied them already.
    let passes = match config.schedule.as_str() {
        AUTO if config.depth > 1 => Passes::default(),
        _ => Passes { recompute, hoist, split_backward },
    };
    let costs = UniformCosts::new(1.0, 2.0, 0.0).per_units(timetable.units_per_micro);
    let (timetable, how) = passes.apply(timetable, how, &costs)?;
    Ok(lower(&timetable, &how)?)
}

/// The tensors of the model in `dir`, which is of these sizes, by name.
fn weights(dir: &Path, model: &Gpt2Config) -> Result<HashMap<String, Vec<f32>>> {
    let gpt2 = hf::read(dir)?;
    ensure!(gpt2.config == *model, "{} was changed while it was read", dir.display());
    Ok(gpt2.weights.into_iter().map(|(param, values)| (param.name, values)).collect())
}

/// The timetable of the steps from `first` on that are left over after whole windows.
fn rest(config: &Config, window: u32, first: u64) -> Result<Option<Timetable>> {
    let n_left = (config.steps.saturating_sub(first) % u64::from(window)) as u32;
    if n_left == 0 {
        return Ok(None);
    }
    let (timetable, _) = timetable(config, n_left)?;
    ensure!(
        timetable.update.n_steps().max(1) == n_left,
        "{} has a window of {window} steps, which {} steps are no multiple of: choose other --steps",
        config.schedule,
        config.steps
    );
    Ok(Some(timetable))
}

/// The timetable that the settings name, of a window of so many steps if it is asynchronous; and what the
/// search came to if they ask for one.
fn timetable(config: &Config, window: u32) -> Result<(Timetable, Option<Report>)> {
    if is_file(&config.schedule) {
        let timetable = read(Path::new(&config.schedule))?;
        let n_micro_batches = timetable.micro_batches_per_step();
        let counts = (timetable.rows.len(), n_micro_batches as usize);
        ensure!(
            counts == (config.depth, config.micro_batches),
            "{} was changed while it was read",
            config.schedule
        );
        return Ok((timetable, None));
    }
    let shape = Shape {
        n_pipes: config.pipes,
        n_chunks: config.chunks,
        scaling: config.scaling,
        n_in_turn: config.in_turn,
        n_waves: config.waves,
        in_flight: config.in_flight,
        window,
        ..Shape::new(config.depth, u32::try_from(config.micro_batches)?)
    };
    // One worker has no pipeline to schedule: it alternates forward and backward.
    let schedule = if config.depth == 1 { "dapple" } else { &config.schedule };
    if schedule == AUTO {
        return searched(config, &shape);
    }
    Ok((find(schedule)?.timetable(&shape)?, None))
}

/// The timetable that a search finds, a backward taken to cost two forwards. Every rank of a run gets the
/// same one unless time runs out.
fn searched(config: &Config, shape: &Shape) -> Result<(Timetable, Option<Report>)> {
    let how = Search {
        max_peak: config.memory_cap,
        time_limit: Duration::from_secs_f64(config.search_time),
        seed: config.seed,
        ..Search::default()
    };
    let costs = |t: &Timetable| Ok(UniformCosts::new(1.0, 2.0, 0.0).per_units(t.units_per_micro));
    let Config { recompute, hoist, split_backward, .. } = *config;
    let passes = Passes { recompute, hoist, split_backward };
    let (timetable, report) = auto(config.placement, shape, passes, &how, costs, |_| ())?;
    Ok((timetable, Some(report)))
}

/// What one rank leaves.
#[derive(Default)]
struct RankTrained {
    last: Option<StepReport>,
    weights: Vec<(Param, Vec<f32>)>,
    events: Vec<Vec<Event>>,
}

fn merge(ranks: Vec<RankTrained>) -> Result<Trained> {
    let Some(last) = ranks.first().and_then(|r| r.last) else { bail!("no step was trained") };
    let n_timelines = ranks.first().map_or(0, |r| r.events.len());
    let mut timelines = vec![Timeline::default(); n_timelines];
    let mut weights = Vec::new();
    for rank in ranks {
        for (timeline, events) in timelines.iter_mut().zip(rank.events) {
            timeline.n_workers += 1;
            timeline.events.extend(events);
        }
        weights.extend(rank.weights);
    }
    for timeline in &mut timelines {
        let start = timeline.events.iter().map(|e| e.start).fold(f64::INFINITY, f64::min);
        for event in &mut timeline.events {
            event.start -= start;
            event.end -= start;
        }
    }
    Ok(Trained { weights, last, timelines, checkpoint: None })
}

impl Trained {
    /// Measured makespan over the makespan that the measured ops would have without any overhead: the
    /// median over the last steps.
    pub fn overhead(&self, program: &Program) -> Option<f64> {
        let ratio =
            |t: &Timeline| t.makespan() / simulate(program, &MeasuredCosts::of(t)).makespan();
        let mut ratios: Vec<f64> =
            self.timelines.iter().map(ratio).filter(|r| r.is_finite()).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied()
    }
}

/// The corpus as the engine asks for it.
struct Samples<'r> {
    corpus: &'r Corpus,
    seed: u64,
    context: usize,
    /// Samples of the global batch.
    per_step: u64,
}

impl Data for Samples<'_> {
    fn sample(
        &self,
        step: u64,
        sample: u64,
        input: &mut Vec<u32>,
        target: &mut Vec<u32>,
    ) -> std::io::Result<()> {
        let number = step.wrapping_mul(self.per_step).wrapping_add(sample);
        let batch = self.corpus.batch(self.seed, number..number.saturating_add(1))?;
        input.extend(batch.input);
        target.extend(batch.target);
        Ok(())
    }

    fn n_targets(&self) -> usize {
        self.context
    }
}

/// The fault of a file that failed while the run was under way.
pub fn io_fault(what: &str, path: &Path, error: &dyn ToString) -> Fault {
    let message = format!("cannot write {what} {}: {}", path.display(), error.to_string());
    Fault::new(Class::Io, Rank(0), message)
}
