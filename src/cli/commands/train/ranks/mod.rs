//! `chimera train` as one of several ranks that are processes: its checks, lines, signals and
//! reports. Their life is the library's ([`run_rank`](crate::run::run_rank)).

#[cfg(all(unix, debug_assertions))]
mod fault_injection;
mod files;
#[cfg_attr(not(feature = "mpi"), path = "no_mpi.rs")]
mod mpi;
#[cfg(feature = "quic")]
mod places;
#[cfg_attr(not(feature = "quic"), path = "no_quic.rs")]
mod quic;
mod relaid;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use anyhow::Result;
use chimera_core::comm::{Comm, Host};
use chimera_core::engine::StepReport;
use chimera_core::fault::Fault;

use self::files::RunFiles;
pub(crate) use self::mpi::with;
#[cfg(feature = "quic")]
pub(crate) use self::places::{Rejoins, tell_of};
#[cfg(feature = "quic")]
pub(crate) use self::quic::{Begin, local, run_host, run_member, secret_in};
use self::relaid::Relaying;
#[cfg(feature = "quic")]
pub(crate) use self::relaid::{Balance, is_relaid};
use super::telling::Telling;
use super::{Stop, Train, checks, listen, say_resumed};
use crate::cli::parts::schedule::shape::warn_of_unread;
use crate::cli::parts::terminal::console::{tell, warn};
use crate::cli::parts::terminal::leftover::leave;
use crate::cli::parts::terminal::progress::Say;
use crate::device::{Kernels, start_threads};
use crate::formats::checkpoint::Store;
use crate::observe::Prometheus;
use crate::run::{Callbacks, Console, Folder, Leader, Observer, Place, Run, Trained, class_of};
use crate::settings::Config;
use crate::transport::Over;

/// A function to run on all ranks, with the transport and its name; rank 0 returns a result.
pub(crate) type RankWork<'w, T> =
    dyn Fn(&mut dyn Comm<Host>, &str) -> Result<Option<T>, Fault> + 'w;

/// Returns the functions by which a rank prints from any thread, over this transport.
const fn console(transport: &'static str) -> Console {
    Console { transport, warn, tell: |line| tell(line), exit: leave }
}

/// The command as one rank.
struct Rank<'t> {
    train: &'t Train,
    say: Say,
    console: Console,
    /// The transport, and the reason why this process is a rank.
    how: String,
    /// The request to stop by a signal, once signals are handled.
    stop: OnceLock<Arc<Stop>>,
    /// The files of the run, at their places on this machine.
    files: RunFiles<'t>,
    relaying: Relaying<'t>,
}

impl<'t> Rank<'t> {
    fn new(train: &'t Train, transport: &'static str, how: String) -> Rank<'t> {
        let console = console(transport);
        let (say, stop) = (train.say(), OnceLock::new());
        let (files, relaying) = (RunFiles::shared(), Relaying::default());
        Rank { train, say, console, how, stop, files, relaying }
    }
}

/// Trains as the rank of this process, until the end of the rank.
pub(crate) fn run(train: &Train, config: Result<Config>, over: Over, why: &str) -> Result<()> {
    match over {
        Over::Quic => quic::run(train, config, why),
        _ => mpi::run(train, config, why),
    }
}

impl Callbacks for Rank<'_> {
    type Kernels = Kernels;
    type Outputs = Option<Prometheus>;
    type Leader<'l>
        = Reports<'l>
    where
        Self: 'l;

    fn console(&self) -> Console {
        self.console
    }

    fn say(&self, line: &str) {
        self.say.line(line);
    }

    fn on_stop(&self, look: impl Fn() -> bool + Send + 'static) -> Result<&AtomicBool> {
        let stop = Stop::on_signal(look)?;
        Ok(self.stop.get_or_init(|| stop).flag())
    }

    fn start(&self) -> Result<()> {
        Ok(start_threads()?) // for the evaluation at the end
    }

    fn check(&self, run: &Run) -> Result<()> {
        checks::check(run)
    }

    fn prepared(&self, config: &Config, n_ranks: u32) {
        warn_of_unread(config);
        self.say.line(&format!("{n_ranks} ranks over {} ({})", self.console.transport, self.how));
    }

    fn resumed(&self, run: &Run, from: Option<&Path>, changes: &[String]) {
        say_resumed(run, from, changes, &self.say);
    }

    fn open(&self, config: &Config) -> Result<Option<Prometheus>> {
        listen(config)
    }

    fn begun(&self, run: &Run, folder: &Path) {
        self.stop.get().into_iter().for_each(|stop| stop.concerns(run, folder));
        self.relaying.begun(folder);
    }

    fn lead<'l>(
        &'l self,
        run: &'l Run,
        folder: &'l mut Folder,
        prometheus: &'l Option<Prometheus>,
    ) -> Result<Reports<'l>> {
        let telling = Telling::begin(run, folder, prometheus.as_ref(), &self.say)?;
        Ok(Reports { telling, rank: self, run })
    }

    fn conclude_trained(&self, run: &Run, place: &Place) -> Result<()> {
        self.train.conclude_trained(run, place, &self.say)
    }

    fn close(&self, run: &Run, folder: &Path, outcome: &Result<()>) {
        if !outcome.as_ref().is_err_and(|error| self.relaying.goes_on_after(error)) {
            self.train.close(run, folder, &self.say, outcome);
        }
    }

    fn stopped(&self, error: anyhow::Error) -> Result<()> {
        if self.relaying.goes_on_after(&error) {
            return Err(error);
        }
        leave(class_of(&error).code().into())
    }

    fn store(&self, folder: &Path) -> Store {
        (self.files.store)(folder)
    }

    fn local(&self, path: &Path) -> PathBuf {
        (self.files.local)(path)
    }

    #[cfg(all(unix, debug_assertions))]
    fn wrap<'c>(&self, comm: &'c mut dyn Comm<Host>) -> Box<dyn Comm<Host> + 'c> {
        Box::new(fault_injection::Struck::new(comm))
    }

    #[cfg(all(unix, debug_assertions))]
    fn reached(&self, point: &str) {
        fault_injection::at(|| point.into());
    }
}

/// The reports of the rank that leads.
struct Reports<'l> {
    telling: Telling<'l>,
    rank: &'l Rank<'l>,
    run: &'l Run,
}

impl Leader for Reports<'_> {
    fn train<T>(&mut self, go: impl FnOnce(&mut Observer<'_>) -> Result<T>) -> Result<T> {
        let (run, Rank { relaying, stop, .. }) = (self.run, self.rank);
        self.telling.train(|observe| {
            go(&mut |report: &StepReport| {
                observe(report)?;
                if relaying.look(run, report) {
                    stop.get().into_iter().for_each(|stop| stop.flag().store(true, Relaxed));
                }
                Ok(())
            })
        })
    }

    fn conclude(&mut self, trained: Trained) -> Result<()> {
        let (folder, seconds) = self.telling.end();
        let Rank { train, say, stop, relaying, .. } = self.rank;
        let is_signalled = stop.get().is_some_and(|stop| stop.is_signalled());
        relaying.stop(self.run, &trained, is_signalled)?;
        train.conclude(self.run, folder, (trained, seconds), say)
    }

    fn end(&mut self) {
        self.telling.end();
    }
}
