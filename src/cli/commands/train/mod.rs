//! `chimera train`: progress on the terminal around a [`Run`].

#[cfg_attr(not(feature = "mpi"), path = "no_ranks.rs")]
pub(crate) mod ranks;
mod stop;
mod weights;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use chimera_backend_candle::{measured_bf16_peak, measured_peak};
use chimera_core::engine::StepReport;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_core::model::Objective;
use clap::{Args, Parser};
use serde_json::json;

pub(crate) use self::stop::Stop;
use crate::cli::parts::console::{counted, print, tell, warn};
use crate::cli::parts::model::warn_of_bytes;
use crate::cli::parts::outcome::Outcome;
use crate::cli::parts::predicted;
use crate::cli::parts::progress::{Progress, Say};
use crate::cli::parts::proof::named;
use crate::cli::parts::report;
use crate::cli::parts::shape::warn_of_unread;
use crate::cli::parts::{suggest, within_step};
use crate::device::{OpenDevice, Precision, n_cores};
use crate::formats::checkpoint::Checkpoint;
use crate::observe::{Metrics, Prometheus, Stragglers};
use crate::run::outside::OnDisk;
use crate::run::{Folder, Place, Run, Trained};
use crate::settings::args::explained;
use crate::settings::{Config, Layers, Layout, Transport};

/// Trains a GPT-2, a Llama or a BERT through a pipeline
#[derive(Args)]
pub(crate) struct Train {
    #[command(flatten)]
    layers: Box<Layers>,
    /// Prints a summary as JSON on standard output, and all else on standard error
    #[arg(long)]
    pub(crate) json: bool,
}

/// Trains with the timetable in FILE
#[derive(Parser)]
#[command(bin_name = "chimera schedule import FILE --run", args_override_self = true)]
struct Line {
    #[command(flatten)]
    train: Train,
}

impl Train {
    /// Training with the timetable of a file; exits if `options` are not its options.
    pub(crate) fn with_schedule(file: PathBuf, options: Vec<OsString>) -> Train {
        let schedule = ["chimera train".into(), "--schedule".into(), file.into_os_string()];
        let line = Line::try_parse_from(schedule.into_iter().chain(options));
        line.unwrap_or_else(|error| explained(error).exit()).train
    }

    pub(crate) fn run(self) -> Result<()> {
        let config = self.layers.resolve(&OnDisk);
        let transport = config.as_ref().map_or(Transport::Auto, |config| config.transport);
        match transport.choose()? {
            (true, why) => ranks::run(&self, config, &why),
            (false, _) => self.run_alone(config?),
        }
    }

    /// With all workers in this process.
    fn run_alone(&self, config: Config) -> Result<()> {
        ensure!(
            !config.mpi_allreduce,
            "mpi-allreduce is MPI's, and here workers are threads: start ranks with mpirun or srun, or leave it out"
        );
        let mut run = Run::prepare(config)?;
        run.prediction()?; // refused before there is a folder
        warn_of_unread(run.config());
        let stop = Stop::on_signal(|| true)?;
        let say = Say { to_stderr: self.json };
        let place = Place::claim(run.config())?;
        let open = &mut |path: &Path| Ok(Checkpoint::open(path)?);
        let checkpoint = place.checkpoint(run.config(), &warn, open)?;
        resume(&mut run, checkpoint, &|line| say.line(line))?;
        if run.first_step() == run.config().steps {
            return self.conclude_trained(&run, &place, &say);
        }
        run.save_into(place.store(), warn);
        let prometheus = listen(run.config())?;
        let mut folder = place.begin(run.config(), run.first_step(), &warn)?;
        let explain = run.explain_in(folder.path());
        stop.concerns(&run, folder.path());
        let trained = self.train(&run, &mut folder, prometheus.as_ref(), &say, |observe| {
            run.train(stop.flag(), observe)
        });
        let has_failed = trained.is_err();
        let outcome = trained.and_then(|trained| self.conclude(&run, &folder, trained, &say));
        if let Err(error) = &outcome {
            for also in folder.write_failure(error, has_failed.then_some(&*explain)) {
                tell(format_args!("{also:#}"));
            }
        }
        self.close(&run, folder.path(), &say, &outcome);
        outcome
    }

    /// Trains by `go`, which tells of every step. Returns how many seconds that took, too.
    pub(crate) fn train(
        &self,
        run: &Run,
        folder: &mut Folder,
        prometheus: Option<&Prometheus>,
        say: &Say,
        go: impl FnOnce(&mut Observe<'_>) -> Result<Trained>,
    ) -> Result<(Trained, f64)> {
        say.line(&headline(run));
        if let Some(mixture) = mixture(run) {
            say.line(&mixture);
        }
        if let Some(report) = run.search() {
            say.line(&report.to_string());
        }
        if let Some(prediction) = run.prediction()? {
            if let Some(doubt) = &prediction.doubt {
                warn(doubt);
            }
            say.line(&predicted::before(&prediction));
        }
        if let Some(hint) = shared_cores(run) {
            warn(&hint);
        }
        if run.config().init.is_some() {
            warn_of_bytes(run.corpus().tokenizer(), run.model().vocab);
        }
        if let Some(prometheus) = prometheus {
            say.line(&format!("metrics: http://{}/metrics", prometheus.address()));
        }
        let full = full_tokens_per_s(run)?;
        let (progress, mut slow) = (Progress::new(run, say), Stragglers::default());
        let began = Instant::now();
        let mut observe = |report: &StepReport| {
            let mut metrics = Metrics::of(report, run.tokens_per_step(), full);
            if run.model().objective() == Objective::MaskedTokens {
                metrics.perplexity = None; // its loss is of two kinds
            }
            folder.record(&metrics)?;
            if let Some(why) = &report.skipped {
                progress.warn(&format!("step {} made no update: {why}", report.step));
            }
            if let Some(told) = slow.notice(report) {
                progress.warn(&told);
            }
            if let Some(prometheus) = prometheus {
                prometheus.show(&metrics);
            }
            progress.step(&metrics, folder.best_validation());
            Ok(())
        };
        let trained = within_step::show(run.pace().as_deref(), &progress, || go(&mut observe));
        progress.finish();
        Ok((trained?, began.elapsed().as_secs_f64()))
    }

    /// Concludes a run that had all its steps before: what is to be saved is in its checkpoint.
    pub(crate) fn conclude_trained(&self, run: &Run, place: &Place, say: &Say) -> Result<()> {
        say.line("nothing is left to train: raise --steps to go on");
        place.remove_errors()?;
        weights::keep_from_checkpoint(run, place.path(), say)?;
        if self.json {
            print(format!("{:#}", json!({ "run": place.path(), "steps": run.first_step() })))?;
        }
        Ok(())
    }

    /// Saves what was trained, and shows it if the run is done.
    pub(crate) fn conclude(
        &self,
        run: &Run,
        folder: &Folder,
        (trained, seconds): (Trained, f64),
        say: &Say,
    ) -> Result<()> {
        let config = run.config();
        let saved = weights::keep(run, &trained, folder.path(), say);
        if let Some(checkpoint) = &trained.checkpoint {
            say.line(&format!("checkpoint: {}", checkpoint.display()));
        }
        // What failed first counts.
        if let Some(fault) = trained.unwritten {
            return Err(fault.into());
        }
        saved?;
        if trained.n_steps < config.steps {
            let (n_steps, discarded) = (trained.n_steps, trained.has_discarded);
            let message = stop::stopped(
                n_steps,
                discarded,
                &suggest::to_resume(config.out.is_some(), folder.path()),
            );
            let fault = Fault::new(Class::Requeue, Rank(0), message);
            return Err(Fault { step: n_steps.checked_sub(1), ..fault }.into());
        }
        let hints = shared_cores(run).into_iter().collect();
        Outcome { run, folder, say, json: self.json, hints }.show(&trained, seconds)
    }

    /// The last lines of a run: where it is, and what to do with it.
    pub(crate) fn close(&self, run: &Run, folder: &Path, say: &Say, outcome: &Result<()>) {
        say.line(&format!("run: {}", folder.display()));
        let weights = run.config().weights_dir(folder);
        if let (Ok(()), Some(dir)) = (outcome, weights) {
            // A run is as good a name of its model as the folder within it.
            let dir = if dir.starts_with(folder) { folder } else { &dir };
            say.line(&format!("next: {}", suggest::to_try(run, dir)));
        }
        if run.config().report {
            match report::of_own_run(folder) {
                Ok(page) => say.line(&format!("report: {}", page.display())),
                Err(error) => warn(&format!("no report of the run: {error:#}")),
            }
        }
    }
}

/// What is told of each step.
pub(crate) type Observe<'o> = dyn FnMut(&StepReport) -> Result<()> + Send + 'o;

/// Where Prometheus can scrape, if the settings want it.
pub(crate) fn listen(config: &Config) -> Result<Option<Prometheus>> {
    let listen = |address| {
        Prometheus::listen(address).with_context(|| format!("cannot listen at {address}"))
    };
    config.prometheus.map(listen).transpose()
}

/// Begins where a checkpoint ends, if there is one, and says so.
pub(crate) fn resume(
    run: &mut Run,
    checkpoint: Option<Checkpoint>,
    say: &dyn Fn(&str),
) -> Result<()> {
    let path = checkpoint.as_ref().map(|checkpoint| checkpoint.path().display().to_string());
    let changes = run.resume(checkpoint)?;
    match path {
        Some(path) => say(&format!("resumes from {path}: step {} is next", run.first_step())),
        None if run.config().resume.is_some() => {
            say("no finished checkpoint here: training starts from step 0");
        }
        None => {}
    }
    for change in changes {
        say(&format!("  from here on, {change}"));
    }
    Ok(())
}

/// Tokens per second that the devices of a run could train at their peak, if that is said or can be measured.
fn full_tokens_per_s(run: &Run) -> Result<Option<f64>> {
    let config = run.config();
    let n_workers = config.width * config.depth;
    let peak = match config.peak_flops {
        Some(of_a_worker) => of_a_worker * n_workers as f64,
        None if !run.devices().one().is_some_and(OpenDevice::is_host) => return Ok(None),
        None => {
            let cores = n_cores();
            let of_a_thread = match config.precision {
                Precision::Bf16 => measured_bf16_peak(),
                Precision::F32 => None,
            };
            let of_a_thread = of_a_thread.unwrap_or_else(measured_peak);
            cores.min(n_workers * config.threads) as f64 * of_a_thread
        }
    };
    Ok(Some(peak / run.model().flops_per_token(run.config().sequence)))
}

fn headline(run: &Run) -> String {
    let (config, program) = (run.config(), run.program());
    let schedule = match program.window().n_steps() {
        _ if config.depth == 1 => "one worker".to_string(),
        1 => named(program),
        n => format!("{}, a flush every {n} steps", program.schedule()),
    };
    let schedule = match &config.layout {
        Layout::Is(partition) if config.depth > 1 => format!("{schedule}, layout {partition}"),
        _ => schedule,
    };
    format!(
        "{} parameters, {} tokens of text; {schedule}, {} x {} worker(s) {}, \
         {} micro-batches of {} x {} tokens",
        run.model().n_params(),
        run.corpus().n_train(),
        config.width,
        config.depth,
        workers_of(run),
        config.micro_batches,
        config.micro_batch_size,
        config.sequence,
    )
}

/// Which data is mixed, with the part of each, and how often the training goes through it.
fn mixture(run: &Run) -> Option<String> {
    let config = run.config();
    let weights = config.data_weights.as_ref()?.as_slice();
    let samples_per_step = run.tokens_per_step() / config.sequence as u64;
    let epochs = run.corpus().epochs(config.steps.saturating_mul(samples_per_step));
    let each = config.data.iter().zip(weights).zip(epochs).map(|((file, weight), epochs)| {
        format!("{} {weight} ({epochs:.2} epochs)", file.display())
    });
    Some(format!("mixture: {}", each.collect::<Vec<_>>().join(", ")))
}

/// What workers compute with.
fn workers_of(run: &Run) -> String {
    match run.devices().one() {
        Some(device) if device.is_host() => format!("with {} thread(s) each", run.config().threads),
        Some(device) => format!("on {}", device.name()),
        None => format!("on {}", run.config().device),
    }
}

/// A warning that workers have to wait for cores, if they are more.
fn shared_cores(run: &Run) -> Option<String> {
    let config = run.config();
    if !run.devices().one().is_some_and(OpenDevice::is_host) {
        return None;
    }
    let cores = n_cores();
    let threads = config.width * config.depth * config.threads;
    let workers = counted((config.width * config.depth) as f64, "worker", "s");
    let of_each = match config.threads {
        1 => String::new(),
        n => format!(" of {n} threads each"),
    };
    let on = counted(cores as f64, "core", "s");
    let hint =
        format!("{workers}{of_each} on {on}; the bubble includes time spent waiting for a core");
    (threads > cores).then_some(hint)
}
