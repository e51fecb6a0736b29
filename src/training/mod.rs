//! One training run on this machine: from settings to trained weights.

mod fit;
mod flops;
mod folder;
mod metrics;
mod prometheus;
mod tensorboard;
mod trace;

use std::path::Path;
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
use chimera_core::order::{Progress, Search};
use chimera_core::schedule::{Shape, find};
use chimera_core::stage::Param;
use chimera_core::timetable::Timetable;

pub use fit::Need;
pub use flops::{flops_per_token, measured_peak};
pub use folder::Folder;
pub use metrics::Metrics;
pub use prometheus::Prometheus;
use trace::{Did, Recorder};

use crate::auto::{AUTO, auto};
use crate::data::{Batch, Corpus};
use crate::settings::Config;
use crate::timetable::{is_file, read};

/// Windows of the validation text that are evaluated.
const N_VALIDATION: usize = 64;
/// The last runs of the program whose timelines are kept.
const N_TIMELINES: u64 = 10;

/// A run that has been checked as far as can be before it starts.
pub struct Run {
    config: Config,
    model: Gpt2Config,
    stages: Vec<Gpt2Stage<Candle>>,
    program: Program,
    search: Option<Progress>,
    /// Of the steps at the end that do not make a whole window.
    last: Option<Program>,
    corpus: Corpus,
    training: Training,
}

/// All of a run but its data.
pub struct Plan {
    config: Config,
    model: Gpt2Config,
    stages: Vec<Gpt2Stage<Candle>>,
    program: Program,
    search: Option<Progress>,
    last: Option<Program>,
    training: Training,
    need: Need,
}

/// What a run leaves.
pub struct Trained {
    /// Every tensor by its parameter, in order of the stages.
    pub weights: Vec<(Param, Vec<f32>)>,
    /// The last step's report.
    pub last: StepReport,
    /// What the workers of the first group did in the last runs of the program, each from its own start.
    pub timelines: Vec<Timeline>,
}

impl Plan {
    /// Checks settings, model and schedule, which it proves, and foresees the memory. Reads no data.
    pub fn make(config: Config) -> Result<Plan> {
        ensure!(
            config.device == "cpu",
            "device `{}` is not available: this build has `cpu` alone",
            config.device
        );
        let model = config.model();
        model.validate()?;
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
            lr: config.lr,
            warmup: config.warmup,
            weight_decay: config.weight_decay,
            clip: (config.clip > 0.0).then_some(config.clip),
            check_finite: config.check_finite,
        };
        let ends = vec![StageId(0), StageId(n_stages as u16 - 1)];
        let how = Lowering {
            sync: config.sync,
            barrier: training.needs_barrier(),
            tied: if model.tied && n_stages > 1 { vec![ends] } else { Vec::new() },
            max_peak: config.memory_cap,
            ..Lowering::default()
        };
        let Config { recompute, hoist, split_backward, .. } = config;
        let passes = Passes { recompute, hoist, split_backward };
        let costs = UniformCosts::new(1.0, 2.0, 0.0).per_units(timetable.units_per_micro);
        let program = |timetable| -> Result<Program> {
            let (timetable, how) = passes.apply(timetable, how.clone(), &costs)?;
            Ok(lower(&timetable, &how)?)
        };
        let whole = program(timetable)?;
        let last = rest(&config, whole.window().n_steps())?.map(&program).transpose()?;
        let program = whole;
        let need = fit::need(&config, &model, &cuts, &program);
        Ok(Plan { config, model, stages, program, search, last, training, need })
    }

    /// The sizes of the model.
    pub fn model(&self) -> &Gpt2Config {
        &self.model
    }

    /// What each worker does in a step, or in a window of steps.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The memory it will need.
    pub fn need(&self) -> Need {
        self.need
    }
}

impl Run {
    /// Checks settings, model, data, schedule and memory. Nothing is written.
    pub fn prepare(config: Config) -> Result<Run> {
        config.model().validate()?;
        let corpus = Corpus::open(&config.data, config.vocab, config.context)?;
        let Plan { config, model, stages, program, search, last, training, need } =
            Plan::make(config)?;
        fit::check(&config, &need)?;
        Ok(Run { config, model, stages, program, last, search, corpus, training })
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
    pub fn search(&self) -> Option<&Progress> {
        self.search.as_ref()
    }

    /// The text.
    pub fn corpus(&self) -> &Corpus {
        &self.corpus
    }

    /// Windows of the text that is not trained on.
    pub fn validation(&self) -> Batch {
        self.corpus.validation(N_VALIDATION)
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
        let samples =
            Samples { corpus: &self.corpus, seed: self.config.seed, context: self.config.context };
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
        let steps = self.config.trace_steps.0.clone();
        let recorder = |path| Recorder::new(path, steps, self.config.width);
        let recorder = self.config.trace.as_deref().map(recorder);
        let ranks = run_threads(n_ranks, |comm: &mut Threads<_>| {
            let rank = comm.rank();
            let pool = rayon::ThreadPoolBuilder::new().num_threads(self.config.threads).build();
            let pool = pool.map_err(|e| {
                let n = self.config.threads;
                let message =
                    format!("cannot start {n} compute thread(s): {e}; choose fewer --threads");
                Fault::new(Class::OutOfMemory, rank, message)
            })?;
            pool.install(|| self.train_rank(job, comm, &observe, recorder.as_ref()))
        });
        let traced = recorder.map_or(Ok(()), |recorder| recorder.finish());
        let ranks = ranks?;
        traced?;
        merge(ranks)
    }

    /// Whether the weights are evaluated after `step`.
    fn is_evaluated(&self, step: u64) -> bool {
        let every = self.config.eval_every;
        every > 0 && (step + 1).is_multiple_of(every)
    }

    fn train_rank<'r, O: FnMut(&StepReport) -> Result<()>>(
        &'r self,
        job: Job<'r>,
        comm: &mut Threads<<Candle as Kernels>::Tensor>,
        observe: &Mutex<O>,
        recorder: Option<&Recorder<'r>>,
    ) -> Result<RankTrained, Fault> {
        let rank = comm.rank();
        let stage = |id: StageId| self.stages[id.index()].clone();
        let mut worker = Worker::new(job, Candle::cpu(), comm, stage)?;
        let mut trained = RankTrained::default();
        let held_out = HeldOut { batch: self.validation(), context: self.config.context };
        let (mut step, mut stop) = (0, false);
        while step < self.config.steps && !stop {
            let is_whole = self.config.steps - step >= u64::from(self.program.window().n_steps());
            let (first, mut program) = (step, &self.program);
            if let Some(last) = self.last.as_ref().filter(|_| !is_whole) {
                worker.set_program(last)?;
                program = last;
            }
            let mut reports = worker.run(step)?;
            if let Some(at) = reports.iter().rposition(|report| self.is_evaluated(report.step)) {
                let report = &mut reports[at];
                let n_samples = held_out.n_samples();
                report.validation_loss =
                    Some(worker.evaluate(report.step, &held_out, n_samples)?);
            }
            for report in reports {
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
            if let Some(recorder) = recorder {
                let (events, waits) = (worker.events(), worker.waits());
                recorder.add(&Did { rank, program, steps: first..step, events, waits })?;
            }
            if rank.index() < job.program.placement().n_workers() && is_whole {
                if trained.events.len() as u64 == N_TIMELINES {
                    trained.events.remove(0);
                }
                trained.events.push(worker.events().to_vec());
            }
        }
        trained.weights = worker.weights()?;
        Ok(trained)
    }
}

/// The validation text as the engine asks for it.
struct HeldOut {
    batch: Batch,
    context: usize,
}

impl HeldOut {
    fn n_samples(&self) -> u64 {
        (self.batch.input.len() / self.context) as u64
    }
}

impl Data for HeldOut {
    fn sample(&self, _: u64, sample: u64, input: &mut Vec<u32>, target: &mut Vec<u32>) {
        let start = sample as usize * self.context;
        let window = start..start + self.context;
        input.extend(self.batch.input.get(window.clone()).unwrap_or_default());
        target.extend(self.batch.target.get(window).unwrap_or_default());
    }

    fn n_targets(&self) -> usize {
        self.context
    }
}

/// The timetable of the steps that are left over after whole windows.
fn rest(config: &Config, window: u32) -> Result<Option<Timetable>> {
    let n_left = (config.steps % u64::from(window)) as u32;
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
fn timetable(config: &Config, window: u32) -> Result<(Timetable, Option<Progress>)> {
    if is_file(&config.schedule) {
        let timetable = read(Path::new(&config.schedule))?;
        let n_micro_batches = timetable.n_micro_batches / timetable.update.n_steps().max(1);
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
fn searched(config: &Config, shape: &Shape) -> Result<(Timetable, Option<Progress>)> {
    let how = Search {
        max_peak: config.memory_cap,
        time_limit: Duration::from_secs_f64(config.search_time),
        seed: config.seed,
        ..Search::default()
    };
    let costs = |t: &Timetable| Ok(UniformCosts::new(1.0, 2.0, 0.0).per_units(t.units_per_micro));
    let found = auto(config.placement, shape, config.split_backward, &how, costs, |_| ())?;
    Ok((found.timetable, Some(found.progress)))
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
    Ok(Trained { weights, last, timelines })
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
}

impl Data for Samples<'_> {
    fn sample(&self, step: u64, sample: u64, input: &mut Vec<u32>, target: &mut Vec<u32>) {
        let batch = self.corpus.batch(self.seed, step, sample..sample + 1);
        input.extend(batch.input);
        target.extend(batch.target);
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
