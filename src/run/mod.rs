//! Running: a training from settings to trained weights, over threads or processes, and the evaluation of a model.

mod available_memory;
mod earlier_files;
pub mod evaluate;
mod fingerprint;
mod folder;
mod gather;
mod initial;
pub mod launch;
mod lock;
mod memory_check;
#[cfg_attr(not(feature = "nccl"), path = "no_nccl.rs")]
mod nccl;
pub mod outside;
mod pace;
mod processes;
mod rank;
mod replica_devices;
mod resume;
mod runs;
mod samples;
mod steps;
mod trained;
mod verify;
mod watch;

use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use anyhow::Result;
use chimera_core::comm::{Endpoint, Host, Threads};
use chimera_core::engine::{Job, StepReport, run_threads};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_core::layers::Layers;
use chimera_core::model::ModelConfig;
use chimera_core::program::Program;
use chimera_core::search::Report;
use chimera_core::timetable::Timetable;

pub use folder::{Folder, Place, SETTINGS, is_error, settings_in, write_error};
pub use gather::share;
use initial::Initial;
pub use lock::is_at_work;
pub use pace::{Pace, WithinStep};
use processes::AsRank;
pub use processes::PATIENCE;
use resume::kept;
pub use runs::{RUNS, newest_first};
use samples::{HeldOut, Samples};
pub use trained::Trained;
use trained::{RankTrained, merge};
pub use verify::checkpoint_as;
use watch::Watch;

use crate::data::{Batch, Corpus};
use crate::device::{Compute, Devices, OpenDevice};
use crate::formats::checkpoint::{Checkpoint, Saver};
use crate::observe::{Explain, Recorder};
use crate::plan::Plan;
use crate::settings::Config;

/// Windows of the validation text that are evaluated.
const N_VALIDATION: usize = 64;

/// A run that has been checked as far as can be before it starts.
pub struct Run {
    plan: Plan,
    devices: Devices,
    corpus: Corpus,
    /// Where it begins, if not at the start.
    start: Option<Checkpoint>,
    saver: Option<Saver>,
    /// Where each rank tells what it did last, if it fails.
    explain: Option<Arc<Explain>>,
    pace: OnceLock<Arc<Pace>>,
    /// What to begin with, unless weights are drawn at random or those of a checkpoint.
    initial: Option<Initial>,
}

impl Run {
    /// Checks settings, model, data, schedule and memory. Nothing is written. A run that is to be resumed is ready
    /// after [`resume`](Run::resume).
    pub fn prepare(config: Config) -> Result<Run> {
        Run::prepare_with(config, None, Here { part: 1.0, own: None })
    }

    /// With the timetable that a search has `found`, if it was elsewhere.
    fn prepare_with(config: Config, found: Option<Timetable>, here: Here) -> Result<Run> {
        config.model().validate()?;
        let corpus = Corpus::open(&config.data, &config.model())?;
        let found = found.map_or_else(|| kept(&config), |found| Ok(Some(found)))?;
        let plan = Plan::with(config, found)?;
        let Config { width, depth, precision, .. } = plan.config;
        let devices = match here.own {
            None => Devices::open(&plan.devices, width, precision)?,
            Some((rank, local)) => {
                let device = plan.devices[rank.index() % depth];
                Devices::only(rank, OpenDevice::open(device, local, precision)?)
            }
        };
        if here.own.is_none() {
            replica_devices::check(&plan.program, &plan.config, &devices.models())?;
        }
        memory_check::check(&plan, &devices, here.part)?;
        let (start, saver, explain, initial) = (None, None, None, None);
        let pace = OnceLock::new();
        let mut run = Run { plan, devices, corpus, start, saver, explain, pace, initial };
        if run.config().resume.is_none() {
            run.open_initial()?;
        }
        Ok(run)
    }

    /// Elements of the longest tensor that ranks send each other, or a few more.
    pub fn longest_tensor(&self) -> usize {
        self.plan.longest_tensor()
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.plan.config
    }

    /// Where it computes.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// The model.
    pub fn model(&self) -> &ModelConfig {
        &self.plan.model
    }

    /// What each worker does in a step, or in a window of steps.
    pub fn program(&self) -> &Program {
        &self.plan.program
    }

    /// What the search for a schedule came to, if there was one.
    pub fn search(&self) -> Option<&Report> {
        self.plan.search.as_ref()
    }

    /// The text.
    pub fn corpus(&self) -> &Corpus {
        &self.corpus
    }

    /// Windows of the text that is not trained on.
    pub fn validation(&self) -> io::Result<Batch> {
        self.corpus.validation(N_VALIDATION)
    }

    /// Tokens of one step over all groups.
    pub fn tokens_per_step(&self) -> u64 {
        let Config { width, micro_batches, micro_batch_size, context, .. } = self.config();
        let factors = [width, micro_batches, micro_batch_size, context];
        factors.into_iter().fold(1, |n, factor| n.saturating_mul(*factor as u64))
    }

    /// Lets every rank of a run that fails write what it did last, as `ops.<rank>.jsonl` in this folder. Who ends
    /// the process from another thread can do that too.
    pub fn explain_in(&mut self, folder: &Path) -> Arc<Explain> {
        Arc::clone(self.explain.insert(Arc::new(Explain::into(folder))))
    }

    /// Trains, telling `observe` of every step; `stop` ends it after the step or window under way. An error of
    /// `observe` ends the run too.
    pub fn train(
        &self,
        stop: &AtomicBool,
        observe: impl FnMut(&StepReport) -> Result<()> + Send,
    ) -> Result<Trained> {
        let samples = self.samples();
        let job = self.job(&samples, stop);
        let watch = self.watch(observe)?;
        let ranks = match self.devices.share_tensors() {
            true => self.devices.run(OnThreads { run: self, job, watch: &watch })?,
            false => self.train_staged(job, &watch),
        };
        // What a run that failed has saved and recorded is of use too.
        let saved = self.saver.as_ref().and_then(|saver| saver.finish().transpose());
        let traced = watch.recorder.map_or(Ok(()), |recorder| recorder.finish());
        Ok(merge(ranks?)?.with(saved, traced))
    }

    /// Training with a thread for each rank, whose tensors go through the host from device to device.
    fn train_staged<'r, O>(
        &'r self,
        job: Job<'r>,
        watch: &Watch<'r, O>,
    ) -> Result<Vec<RankTrained>, Fault>
    where
        O: FnMut(&StepReport) -> Result<()> + Send,
    {
        let by_rank = self.devices.by_rank();
        run_threads(by_rank.len() as u32, |comm: &mut Threads<Host>| {
            let device = &by_rank[comm.rank().index()];
            device.run(AsRank { run: self, job, comm, watch })
        })
    }

    fn job<'r>(&'r self, samples: &'r Samples<'_>, stop: &'r AtomicBool) -> Job<'r> {
        let config = self.config();
        Job {
            program: self.program(),
            width: config.width,
            micro_batch_size: config.micro_batch_size,
            training: &self.plan.training,
            data: samples,
            patience: config.patience(),
            stop,
            epoch: Instant::now(),
        }
    }

    fn watch<O>(&self, observe: O) -> Result<Watch<'_, O>> {
        let config = self.config();
        let (batch, n_targets) = (self.validation()?, self.model().predictions(config.context));
        let held_out = HeldOut { batch, n_targets };
        let steps = config.trace_steps.0.clone();
        // A run that is resumed behind them leaves the trace as it is.
        let trace = config.trace.as_deref().filter(|_| self.first_step() < steps.end);
        let recorder =
            trace.map(|path| Recorder::new(path, steps, config.width, self.plan.sizes()));
        let fingerprint = self.fingerprint();
        let observe = Mutex::new(observe);
        Ok(Watch { fingerprint, observe, held_out, recorder, by_processes: false })
    }
}

/// What of a run is here.
#[derive(Clone, Copy)]
struct Here {
    /// The part of all ranks that is on this host.
    part: f64,
    /// The one rank that is in this process, and its number among those of this host, unless all are in this
    /// process.
    own: Option<(Rank, usize)>,
}

/// Training with a thread for each rank.
struct OnThreads<'r, 'w, O> {
    run: &'r Run,
    job: Job<'r>,
    watch: &'w Watch<'r, O>,
}

impl<O: FnMut(&StepReport) -> Result<()> + Send> Compute for OnThreads<'_, '_, O> {
    type Output = Result<Vec<RankTrained>, Fault>;

    fn on<K: Layers>(self, by_rank: &[K]) -> Self::Output {
        let Config { width, depth, threads, .. } = *self.run.config();
        run_threads((width * depth) as u32, |comm: &mut Threads<K::Tensor>| {
            let rank = comm.rank();
            let kernels = by_rank[rank.index() % by_rank.len()].clone();
            let pool = compute_threads(threads, rank)?;
            pool.install(|| self.run.train_rank(self.job, kernels, comm, self.watch))
        })
    }
}

/// The threads that a rank computes with.
fn compute_threads(n: usize, rank: Rank) -> Result<rayon::ThreadPool, Fault> {
    rayon::ThreadPoolBuilder::new().num_threads(n).build().map_err(|e| {
        let message = format!("cannot start {n} compute thread(s): {e}; choose fewer --threads");
        Fault::new(Class::OutOfMemory, rank, message)
    })
}
