//! `chimera train`: runs a [`Run`] with progress on the terminal.

mod checks;
mod cluster;
mod concluded;
#[cfg_attr(not(any(feature = "mpi", feature = "quic")), path = "no_ranks.rs")]
pub(crate) mod ranks;
mod stop;
mod telling;
mod weights;

use std::ffi::OsString;
use std::iter::once;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use clap::{Args, Parser};
use serde_json::Value;

use self::cluster::ClusterArgs;
pub(crate) use self::stop::Stop;
use self::telling::{shared_cores, told};
use crate::cli::parts::schedule::shape::warn_of_unread;
use crate::cli::parts::terminal::args::LayerArgs;
use crate::cli::parts::terminal::browser::open;
use crate::cli::parts::terminal::console::{print, tell, warn};
use crate::cli::parts::terminal::exit::is_broken_pipe;
use crate::cli::parts::terminal::progress::{Say, Volume};
use crate::cli::parts::training::outcome::Outcome;
use crate::cli::parts::training::report;
use crate::cli::parts::training::suggest;
use crate::cli::tips::explained;
use crate::device::start_threads;
use crate::observe::{Metrics, Prometheus};
use crate::run::outside::OnDisk;
use crate::run::{Begun, Folder, InThreads, Place, Run, Trained};
use crate::settings::{Config, Survive, Transport};
use crate::transport::{Over, choose};

/// Trains a GPT-2, a Llama or a BERT through a pipeline
#[derive(Args)]
pub(crate) struct Train {
    #[command(flatten)]
    layers: Box<LayerArgs>,
    /// Print only warnings and errors
    #[arg(short, long)]
    quiet: bool,
    /// Print a line for every step
    #[arg(short, long, conflicts_with = "quiet")]
    verbose: bool,
    /// Print a summary as JSON on standard output, and all else on standard error
    #[arg(long)]
    pub(crate) json: bool,
    /// Open the report in a browser at the end
    #[arg(long)]
    pub(crate) open: bool,
    // Its heading would apply to all options after it.
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Trains with the timetable in FILE
#[derive(Parser)]
#[command(bin_name = "chimera schedule import FILE --run", args_override_self = true)]
struct Line {
    #[command(flatten)]
    train: Train,
}

impl Train {
    /// Prepares training with the timetable of a file. Exits the process if `options` are invalid.
    ///
    /// # Errors
    /// If the options name another schedule.
    pub(crate) fn with_schedule(file: &Path, options: Vec<OsString>) -> Result<Train> {
        let line = Line::try_parse_from(once("chimera train".into()).chain(options));
        let words = ["chimera", "train"].map(str::to_owned);
        let mut train = line.unwrap_or_else(|error| explained(error, &words).exit()).train;
        let settings = &mut train.layers.0.settings;
        ensure!(
            settings.iter().all(|(key, _)| key != "schedule"),
            "--schedule: --run trains with the timetable in {}: leave --schedule out",
            file.display()
        );
        let name = file.to_str().with_context(|| {
            format!("{} is not a name that settings can hold: rename it", file.display())
        })?;
        *settings = settings.clone().with("schedule", name);
        Ok(train)
    }

    pub(crate) fn run(self) -> Result<()> {
        let resolve = || self.layers.resolve_by_recipe(&OnDisk);
        let how = |config: &Config| (config.devices.transport, config.devices.survive);
        let mut config = resolve();
        let (mut transport, survive) = config.as_ref().map_or((Transport::Auto, Survive::Off), how);
        if config.is_err() && self.cluster.is_said() {
            transport = Transport::Quic; // so that the other ranks learn of the error
        }
        let (over, why) = choose(transport, survive)?;
        match over {
            Over::Quic => {
                self.cluster.declare()?;
                config = resolve(); // with the number of ranks
            }
            _ => self.cluster.refuse_unless_quic()?,
        }
        match over {
            Over::Threads => self.run_alone(config?),
            _ => ranks::run(&self, config, over, &why),
        }
    }

    /// Returns the output of the training, for its lines.
    pub(crate) fn say(&self) -> Say {
        let volume = match (self.quiet, self.verbose) {
            (true, _) => Volume::Quiet,
            (false, true) => Volume::Verbose,
            (false, false) => Volume::Normal,
        };
        Say { to_stderr: self.json, volume }
    }

    /// Trains with all workers in this process.
    fn run_alone(&self, config: Config) -> Result<()> {
        ensure!(
            !config.replicas.mpi_allreduce,
            "mpi-allreduce is MPI's, and here workers are threads: start ranks with mpirun or srun, or leave it out"
        );
        let said = config.clone();
        start_threads()?; // for the evaluation at the end
        let mut run = Run::prepare(config)?;
        run.prediction()?; // errors come before the folder exists
        checks::check(&run)?;
        warn_of_unread(&said);
        let stop = Stop::on_signal(|| true)?;
        let say = self.say();
        let resumed = run.claim(InThreads)?.resume(&warn)?;
        say_resumed(resumed.run, resumed.from.as_deref(), &resumed.changes, &say);
        if resumed.is_trained() {
            let place = resumed.place.context("the one process of a run leads")?;
            return self.conclude_trained(&run, &place, &say);
        }
        let prometheus = listen(resumed.run.config())?;
        let store = resumed.store();
        let Begun { folder, explain, .. } = resumed.begin(store, warn)?;
        let mut folder = folder.context("the one process of a run leads")?;
        stop.concerns(&run, folder.path());
        let trained = told(&run, &mut folder, prometheus.as_ref(), &say, |observe| {
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

    /// Concludes a run whose steps were all done before: the weights to save are in its checkpoint.
    /// If it was killed after its last step, it gets its summary now.
    pub(crate) fn conclude_trained(&self, run: &Run, place: &Place, say: &Say) -> Result<()> {
        say.line("nothing is left to train: increase --steps to go on");
        place.remove_leftovers()?;
        weights::keep_from_checkpoint(run, place, say)?;
        let summary = concluded::summary(run, place, say)?;
        if place.goes_on(run.config()) {
            self.write_report(run, place.path(), say);
        }
        if self.json {
            print_summary(&summary)?;
        }
        Ok(())
    }

    /// Saves the trained weights, and shows the results if the run is done.
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
        if let Some(k) = trained.in_turn {
            say.line(&format!("steps were shortest with {k} forwards in turn (in-turn {k})"));
        }
        // The first failure counts.
        if let Some(fault) = trained.unwritten {
            return Err(fault.into());
        }
        saved?;
        if trained.n_steps < config.training.steps {
            let (n_steps, discarded) = (trained.n_steps, trained.has_discarded);
            let message = stop::stopped(
                n_steps,
                discarded,
                &suggest::to_resume(config.output.out.is_some(), folder.path()),
            );
            let fault = Fault::new(Class::Requeue, Rank(0), message);
            return Err(Fault { step: n_steps.checked_sub(1), ..fault }.into());
        }
        let hints = shared_cores(run).into_iter().collect();
        let last = trained.last.as_ref();
        let last = last.map(|last| Metrics::of(last, run.tokens_per_step(), None));
        let outcome = Outcome { run, place: folder.place(), say, hints, last };
        let summary = outcome.show(&trained, Some(seconds))?;
        if self.json {
            self.write_report(run, folder.path(), say); // before the summary, whose reader may want it
            print_summary(&summary)?;
        }
        Ok(())
    }

    /// Prints the last lines of a run: its location, and commands to continue.
    pub(crate) fn close(&self, run: &Run, folder: &Path, say: &Say, outcome: &Result<()>) {
        say.line(&format!("run: {}", folder.display()));
        let weights = run.config().weights_dir(folder);
        if let (Ok(()), Some(dir)) = (outcome, weights) {
            // The folder of the run also works as a name of the model within it.
            let dir = if dir.starts_with(folder) { folder } else { &dir };
            say.line(&format!("next: {}", suggest::to_try(run, dir)));
        }
        let is_written = self.json && outcome.is_ok();
        if !is_written && run.has_its_folder() {
            self.write_report(run, folder, say);
        }
    }

    /// Writes the report of a run, unless its settings turn it off.
    fn write_report(&self, run: &Run, folder: &Path, say: &Say) {
        if !run.config().output.report {
            return;
        }
        match report::of_own_run(folder) {
            Ok(page) => {
                say.line(&format!("report: {}", page.display()));
                if self.open {
                    open(&page);
                }
            }
            Err(error) => warn(&format!("no report of the run: {error:#}")),
        }
    }
}

/// Prints the summary of a run whose files are written. If the reader is gone, the run does not
/// fail.
fn print_summary(summary: &Value) -> Result<()> {
    match print(format!("{summary:#}")) {
        Err(error) if !is_broken_pipe(&error) => {
            Err(Fault::new(Class::Io, Rank(0), format!("{error:#}")).into())
        }
        _ => Ok(()),
    }
}

/// Starts the Prometheus endpoint, if the settings request one.
pub(crate) fn listen(config: &Config) -> Result<Option<Prometheus>> {
    let listen = |address| {
        Prometheus::listen(address).with_context(|| format!("cannot listen at {address}"))
    };
    config.output.prometheus.map(listen).transpose()
}

/// Prints the step at which a run resumes, and the settings that change there.
fn say_resumed(run: &Run, from: Option<&Path>, changes: &[String], say: &Say) {
    match from {
        Some(path) => {
            let (path, next) = (path.display(), run.first_step());
            say.line(&format!("resumes from {path}: step {next} is next"));
        }
        None if run.config().checkpoints.resume.is_some() => {
            say.line("no finished checkpoint here: training starts from step 0");
        }
        None => {}
    }
    for change in changes {
        say.line(&format!("  from here on, {change}"));
    }
}
