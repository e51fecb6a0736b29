//! Runs: a training from settings to trained weights, over threads or processes, and the evaluation
//! of a model.

mod by_ranks;
mod dir;
mod direct;
mod error_class;
pub mod evaluate;
mod in_folder;
mod machine;
mod process;
mod progress;
mod ranks;
mod resume;
mod session;
mod survivor;
mod unread;
mod workload;

use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::time::Instant;

use anyhow::{Result, bail};
use chimera_core::engine::{Job, StepReport};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::{Rank, StageId};
use chimera_core::model::ModelConfig;
use chimera_core::program::Program;
use chimera_core::render::chrome::Sizes;
use chimera_core::search::Report;
use chimera_core::stage::{Data, name_conflict};
use chimera_core::timetable::Timetable;

pub use dir::claim::Place;
pub use dir::folder::Folder;
pub use dir::layout::{
    DRAWING, MEASURED, MEMBERS, METRICS, PLANNED, REPORT, RUNS, SETTINGS, SUMMARY, is_error,
    is_run, newest_first, settings_in, write_error,
};
pub use dir::lock::{host_name, is_at_work};
pub use direct::{DirectTransport, OnTransport};
pub use error_class::{Several, class_of, fault_of};
use machine::available_memory::resident;
pub use machine::launch;
use machine::memory_check;
pub use machine::outside;
pub use process::{
    Callbacks, Console, Leader, REJOIN, RunOf, run_rank, run_surviving_rank, with_process,
};
pub use progress::pace::{Pace, WithinStep};
pub use progress::trained::Trained;
use progress::trained::merge;
pub use progress::watch::Observer;
use progress::watch::Watch;
pub use ranks::gather::share;
pub use ranks::processes::{PATIENCE, Seat};
use ranks::replica_devices;
pub use ranks::verify::checkpoint_as;
pub use resume::Beginning;
use resume::kept;
pub use session::{
    Begun, Claimed, InThreads, Processes, Resumed, RunRanks, check_ranks, conclude, together,
};
pub use survivor::{Fewer, Survivor};
pub use unread::check_unread;
use unread::{check_names, files};
use workload::initial::Initial;
pub use workload::own::{Model, Own};
pub use workload::subject::Subject;
pub use workload::transformer::Transformer;

use chimera_device::{CoreWatch, Device, Devices, Numbers, OpenDevice, OpenedBy, n_cores};
use chimera_formats::SpecialIds;
use chimera_formats::checkpoint::{Checkpoint, Saver};
use chimera_plan::plan::{Course, Need, Plan, Prediction};
use chimera_settings::{Config, DeviceSettings, ScheduleSettings};

use crate::data::{Batch, Corpus};
use crate::observe::{Explain, Recorder};

/// Windows of the validation text that are evaluated.
const N_VALIDATION: usize = 64;

/// A run after all checks that are possible before it starts. It trains a model on text, or another [`Subject`].
pub struct Run<S> {
    course: Course,
    subject: S,
    /// The checkpoint that it begins with, if any.
    start: Option<Checkpoint>,
    /// The beginning of the run, if this process joins at a later step.
    joined: Option<Beginning>,
    saver: Option<Saver>,
    /// Runs once, for the first warning that a rank cannot write its log.
    unlogged: Once,
    /// Writes the last ops of each rank if the run fails.
    explain: Option<Arc<Explain>>,
    /// The initial weights, unless they are drawn at random or come from a checkpoint.
    initial: Option<Initial>,
    pace: OnceLock<Arc<Pace>>,
    /// Bytes that this process held before the training, including the program's code in use, if known.
    before: OnceLock<Option<f64>>,
    /// The predicted time of a step, once it has been asked for.
    prediction: OnceLock<Option<Prediction>>,
}

impl<K: DirectTransport> Run<Transformer<K>> {
    /// Checks settings, model, data, schedule and memory, and writes nothing. A run that is to be
    /// resumed is ready after [`resume`](Run::resume).
    pub fn prepare(config: Config) -> Result<Run<Transformer<K>>>
    where
        Device: OpenedBy<K>,
    {
        Run::prepare_with(config, None, Here { part: 1.0, own: None })
    }

    /// Prepares a run with the timetable that a search elsewhere has `found`, if any.
    fn prepare_with(
        config: Config,
        found: Option<Timetable>,
        here: Here,
    ) -> Result<Run<Transformer<K>>> {
        config.check_own_model(|_| false)?;
        let model = unread::model(&config)?;
        model.check_sequence(config.model.sequence)?;
        let corpus = Corpus::open(&files(&config), &model, config.model.sequence)?;
        let found = found.map_or_else(|| kept(&config), |found| Ok(Some(found)))?;
        let plan = Plan::with::<K>(config, found)?;
        let ScheduleSettings { width, depth, .. } = plan.course.config.schedule;
        let DeviceSettings { precision, bf16_products, .. } = plan.course.config.devices;
        let numbers = Numbers { precision, bf16_products };
        let devices = match here.own {
            None => Devices::open(&plan.devices, width, numbers)?,
            Some((rank, local)) => {
                let device = plan.devices[rank.index() % depth];
                Devices::only(rank, OpenDevice::open(device, local, numbers)?)
            }
        };
        devices.check_model(&model)?;
        devices.check_optimizer(&plan.course.config.training.optimizer)?;
        if plan.course.config.times_kernels() {
            devices.check_kernel_times()?;
        }
        if plan.course.program.rules().has_moves_to_host() {
            devices.open_offload_files()?;
        }
        if here.own.is_none() {
            let Course { program, config, .. } = &plan.course;
            replica_devices::check(program, config, &devices.models())?;
        }
        memory_check::check(&plan, &devices, here.part)?;
        let Plan { course, priced, cuts, memory, needs, .. } = plan;
        let subject = Transformer { devices, model, priced, cuts, memory, needs, corpus, here };
        Run::of(course, subject)
    }

    /// Returns the devices that it computes on.
    pub fn devices(&self) -> &Devices<K> {
        &self.subject.devices
    }

    /// Returns the model.
    pub fn model(&self) -> &ModelConfig {
        &self.subject.model
    }

    /// Returns the memory that each worker of a group is expected to need.
    pub fn needs(&self) -> &[Need] {
        &self.subject.needs
    }

    /// Returns the text.
    pub fn corpus(&self) -> &Corpus {
        &self.subject.corpus
    }

    /// Returns the tokens that begin, end and pad a text: from the model that the run began with,
    /// and the end of a document from the data.
    pub fn special_ids(&self) -> SpecialIds {
        SpecialIds::of(self.model(), self.said_ids().as_ref(), self.subject.document_end())
    }

    /// Returns windows of the text that is not trained on.
    pub fn validation(&self) -> io::Result<Batch> {
        self.corpus().validation(N_VALIDATION)
    }
}

impl<S: Subject> Run<S> {
    fn of(course: Course, subject: S) -> Result<Run<S>> {
        let params = subject.params();
        check_names(&course.config, &params)?;
        let names = (0..).map(StageId).zip(&params).flat_map(|(stage, params)| {
            let own = params.iter().filter(|param| !param.tied);
            own.map(move |param| (stage, param.name.as_str()))
        });
        if let Some(conflict) = name_conflict(names) {
            bail!("{conflict}");
        }
        let initial = match course.config.checkpoints.resume {
            None => subject.open_initial(&course.config)?,
            Some(_) => None,
        };
        let (start, joined, saver, explain) = (None, None, None, None);
        let (pace, before, prediction) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Ok(Run {
            course,
            subject,
            start,
            joined,
            saver,
            unlogged: Once::new(),
            explain,
            initial,
            pace,
            before,
            prediction,
        })
    }

    /// Returns the settings.
    pub fn config(&self) -> &Config {
        &self.course.config
    }

    /// Returns the program: the work of each worker in a step, or in a window of steps.
    pub fn program(&self) -> &Program {
        &self.course.program
    }

    /// Returns the program of the last steps, which are fewer where windows do not divide the steps.
    pub fn last_program(&self) -> &Program {
        self.course.last.as_ref().unwrap_or(&self.course.program)
    }

    /// Returns the bytes and operations of its stages, as traces show them.
    pub fn sizes(&self) -> Sizes {
        self.subject.sizes(&self.course)
    }

    /// Returns the result of the search for a schedule, if there was one.
    pub fn search(&self) -> Option<&Report> {
        self.course.search.as_ref()
    }

    /// Returns the tokens of one step over all groups, or its targets if the model reads no text.
    pub fn tokens_per_step(&self) -> u64 {
        self.course.samples_per_step().saturating_mul(self.subject.tokens_per_sample(self.config()))
    }

    /// Makes every rank of a failing run write its last ops, as `ops.<rank>.jsonl` in this folder.
    /// A thread that ends the process can do that too.
    pub fn explain_in(&mut self, folder: &Path) -> Arc<Explain> {
        Arc::clone(self.explain.insert(Arc::new(Explain::into(folder))))
    }

    /// Returns true if the folder where ranks write their last ops is still the one that the run began in.
    pub fn has_its_folder(&self) -> bool {
        self.explain.as_ref().is_none_or(|explain| explain.is_in_place())
    }

    /// Trains, and calls `observe` after every step. `stop` ends the run after the last whole step, or after the
    /// current one where it has to be [finished](Run::finishes_steps). An error of `observe` ends the run too.
    pub fn train(
        &self,
        stop: &AtomicBool,
        mut observe: impl FnMut(&StepReport) -> Result<()> + Send,
    ) -> Result<Trained> {
        let samples = self.subject.samples(&self.course);
        let system = Path::new("/");
        let (before, most) = (self.held_before(), Mutex::new(None));
        let cores = Mutex::new(CoreWatch::start());
        let mut observe = |report: &StepReport| {
            // Work on the weights after the last step is not part of the training.
            *most.lock().unwrap_or_else(PoisonError::into_inner) = resident(system);
            self.look_at_cores(&cores, report);
            observe(report)
        };
        let watch = self.watch(&mut observe)?;
        let ranks = S::train_threads(self, self.job(&*samples, stop), &watch);
        // The saves and records of a failed run are useful too.
        let saved = self.saver.as_ref().and_then(|saver| saver.finish().transpose());
        let traced = watch.recorder.map_or(Ok(Vec::new()), |recorder| recorder.finish());
        let most = *most.lock().unwrap_or_else(PoisonError::into_inner);
        let process = before.zip(most).map(|(before, most)| [before, most.peak]);
        let core_share = cores.lock().unwrap_or_else(PoisonError::into_inner).share();
        Ok(Trained { process, core_share, ..merge(ranks?)?.with(saved, traced) })
    }

    /// Measures after a step which share of its cores this process gets.
    fn look_at_cores(&self, cores: &Mutex<CoreWatch>, report: &StepReport) {
        let is_last = report.step + 1 == self.config().training.steps;
        cores.lock().unwrap_or_else(PoisonError::into_inner).look(n_cores(), is_last);
    }

    /// Returns the bytes that this process holds before it trains.
    fn held_before(&self) -> Option<f64> {
        *self.before.get_or_init(|| resident(Path::new("/")).map(|held| held.bytes))
    }

    fn job<'r>(&'r self, samples: &'r dyn Data<S::Item>, stop: &'r AtomicBool) -> Job<'r, S::Item> {
        let config = self.config();
        Job {
            program: self.program(),
            width: config.schedule.width,
            micro_batch_size: config.schedule.micro_batch_size,
            training: &self.course.training,
            data: samples,
            patience: config.patience(),
            stop,
            own_work: None,
            epoch: Instant::now(),
        }
    }

    fn watch<'w>(&'w self, observe: &'w mut Observer<'w>) -> Result<Watch<'w, S::Item>> {
        let config = self.config();
        let held_out = self.subject.held_out(&self.course)?;
        let steps = config.output.trace_steps.0.clone();
        // A run that resumes after these steps leaves the trace as it is.
        let trace = config.output.trace.as_deref().filter(|_| self.first_step() < steps.end);
        let programs = [self.program(), self.last_program()];
        let recorder = trace
            .map(|path| Recorder::new(path, steps, config.schedule.width, self.sizes(), programs));
        let fingerprint = self.fingerprint();
        let observe = Mutex::new(observe);
        Ok(Watch { fingerprint, observe, held_out, recorder, by_processes: false })
    }
}

/// The part of a run that is on this host and in this process.
#[derive(Clone, Copy)]
pub(crate) struct Here {
    /// The share of all ranks that is on this host.
    part: f64,
    /// The one rank in this process and its number among those of this host, or `None` if all ranks
    /// are in this process.
    own: Option<(Rank, usize)>,
}

/// Starts the threads that a rank computes with.
fn compute_threads(n: usize, rank: Rank) -> Result<rayon::ThreadPool, Fault> {
    rayon::ThreadPoolBuilder::new().num_threads(n).build().map_err(|e| {
        let message = format!("cannot start {n} compute thread(s): {e}; choose fewer --threads");
        Fault::new(Class::OutOfMemory, rank, message)
    })
}
