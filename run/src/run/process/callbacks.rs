//! The functions of a program that a run of processes calls.

use std::fmt::Arguments;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use chimera_core::comm::{Comm, Host};
use chimera_formats::checkpoint::Store;
use chimera_settings::Config;

use crate::run::{DirectTransport, Folder, Observer, Place, Run, Trained, Transformer, class_of};

/// A run of a program with these callbacks.
pub type RunOf<P> = Run<Transformer<<P as Callbacks>::Kernels>>;

/// Messages of any thread of a rank: how they are printed, and the name of the transport in them.
#[derive(Clone, Copy)]
pub struct Console {
    /// The name of the transport.
    pub transport: &'static str,
    /// Prints a problem that does not stop the run.
    pub warn: fn(&str),
    /// Prints a line about the end of the run.
    pub tell: fn(Arguments<'_>),
    /// Ends this process with an exit code, after what it has to clean up.
    pub exit: fn(i32) -> !,
}

/// The work of a program around a run of processes, on each of its ranks. An error ends all ranks.
pub trait Callbacks: Sync + Sized {
    /// The kernels of the program's devices.
    type Kernels: DirectTransport;
    /// Outputs of the rank that leads beside its folder, opened before anything is written.
    type Outputs;
    /// The reports of the rank that leads.
    type Leader<'l>: Leader + Send
    where
        Self: 'l;

    /// Returns the functions that print.
    fn console(&self) -> Console;

    /// Prints a line about the run, on the rank that leads.
    fn say(&self, line: &str);

    /// Listens for requests to stop. They call `look`, which returns whether this rank prints, and
    /// set the returned flag.
    fn on_stop(&self, look: impl Fn() -> bool + Send + 'static) -> Result<&AtomicBool>;

    /// Prepares the process that leads, before it has a run.
    fn start(&self) -> Result<()>;

    /// Refuses a run, on any rank.
    fn check(&self, run: &RunOf<Self>) -> Result<()>;

    /// Called on the rank that leads when all `n_ranks` have prepared a run of these settings.
    fn prepared(&self, config: &Config, n_ranks: u32);

    /// Called on the rank that leads with the checkpoint to continue from, and what changes there.
    fn resumed(&self, run: &RunOf<Self>, from: Option<&Path>, changes: &[String]);

    /// Opens the outputs of the rank that leads.
    fn open(&self, config: &Config) -> Result<Self::Outputs>;

    /// Called on the rank that leads when its run is about to train.
    fn begun(&self, run: &RunOf<Self>, folder: &Path);

    /// Begins the reports of the rank that leads.
    fn lead<'l>(
        &'l self,
        run: &'l RunOf<Self>,
        folder: &'l mut Folder,
        outputs: &'l Self::Outputs,
    ) -> Result<Self::Leader<'l>>;

    /// Concludes a run whose steps were all done before.
    fn conclude_trained(&self, run: &RunOf<Self>, place: &Place) -> Result<()>;

    /// Called on the rank that leads at the end of a run that has begun.
    fn close(&self, run: &RunOf<Self>, folder: &Path, outcome: &Result<()>);

    /// Returns the store of the run in `folder`.
    fn store(&self, folder: &Path) -> Store {
        Store::of(folder)
    }

    /// Returns where this process has a file that rank 0 has at `path`, if they share no disk.
    fn local(&self, path: &Path) -> PathBuf {
        path.to_path_buf()
    }

    /// Wraps the transport of a run, to watch or to disturb it.
    fn wrap<'c>(&self, comm: &'c mut dyn Comm<Host>) -> Box<dyn Comm<Host> + 'c> {
        Box::new(comm)
    }

    /// Ends another rank than the first with an error that all ranks have.
    ///
    /// # Errors
    /// That error, if this process has more to do.
    fn stopped(&self, error: anyhow::Error) -> Result<()> {
        (self.console().exit)(class_of(&error).code().into())
    }

    /// Called when this process reaches a point of its life: `start`, `met`, `sums`, `leave`, `left`.
    fn reached(&self, _point: &str) {}
}

/// The reports of the rank that leads.
pub trait Leader {
    /// Trains with `go`, which reports every step. Called again after a death that the run survives.
    fn train<T>(&mut self, go: impl FnOnce(&mut Observer<'_>) -> Result<T>) -> Result<T>;

    /// Saves and shows the results of the run.
    fn conclude(&mut self, trained: Trained) -> Result<()>;

    /// Ends the display of steps.
    fn end(&mut self);
}
