//! Ranks in processes, over any transport.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use chimera_core::comm::{Comm, Endpoint, Host};
use chimera_core::fault::Class;
use chimera_core::ids::Rank;
use chimera_device::{Device, OpenedBy};
use chimera_formats::checkpoint::Checkpoint;
use chimera_settings::{Config, ScheduleSettings};

use super::RunRanks;
use crate::observe::Explain;
use crate::run::error_class::fault_of;
use crate::run::machine::launch::layouts;
use crate::run::progress::watch::Observer;
use crate::run::ranks::gather::share;
use crate::run::{
    DirectTransport, Place, Run, Seat, Subject, Trained, Transformer, checkpoint_as, write_error,
};

/// The rank that leads.
const ROOT: Rank = Rank(0);

/// One rank of several, each a process, with this process's end of their transport.
pub struct Processes<'c, C> {
    comm: &'c mut C,
    patience: Duration,
    /// Gives the place where this process has a file of rank 0.
    local: &'c dyn Fn(&Path) -> PathBuf,
}

impl<'c, C: Comm<Host>> Processes<'c, C> {
    /// Returns ranks that wait for each other for at most `patience` until the first step.
    pub fn new(comm: &'c mut C, patience: Duration) -> Processes<'c, C> {
        Processes { comm, patience, local: &Path::to_path_buf }
    }

    /// Lets this process find files of rank 0 where `local` says, if they share no disk.
    #[must_use]
    pub fn with_local(self, local: &'c dyn Fn(&Path) -> PathBuf) -> Processes<'c, C> {
        Processes { local, ..self }
    }

    /// Prepares a run on all ranks, which must have the same settings; `seat` is the place of this process.
    ///
    /// # Errors
    /// If the settings differ, ask for another number of ranks, or cannot be trained on one of the ranks.
    pub fn prepare<K: DirectTransport>(
        &mut self,
        config: Config,
        seat: Seat,
    ) -> Result<Run<Transformer<K>>>
    where
        Device: OpenedBy<K>,
    {
        self.prepare_checked(Ok(config), seat, |_| Ok(()))
    }

    /// Like [`prepare`](Processes::prepare), if this rank may have no settings, and `check` may refuse its run.
    ///
    /// # Errors
    /// As [`prepare`](Processes::prepare), and those of `check`.
    pub fn prepare_checked<K: DirectTransport>(
        &mut self,
        config: Result<Config>,
        seat: Seat,
        check: impl FnOnce(&Run<Transformer<K>>) -> Result<()>,
    ) -> Result<Run<Transformer<K>>> {
        let n_ranks = self.comm.n_ranks() as usize;
        let config = config.and_then(|config| check_ranks(&config, n_ranks).map(|()| config));
        let config = self.all(config)?;
        let agreed = Run::<Transformer<K>>::agree_on_settings(&config, self.comm)
            .map_err(anyhow::Error::from);
        self.all(agreed)?;
        let run = Run::prepare_as(config, self.comm, seat);
        let run = run.and_then(|run| check(&run).map(|()| run));
        self.all(run)
    }

    /// Makes an error of any rank the error of all; if there are several, the first rank's.
    pub fn all<T>(&mut self, own: Result<T>) -> Result<T> {
        together(self.comm, own, self.patience)
    }
}

/// Makes an error of any rank the error of all; if there are several, the first rank's.
///
/// # Errors
/// That error, or a [`Fault`](chimera_core::fault::Fault) if a rank is lost.
pub fn together<T>(comm: &mut impl Endpoint, own: Result<T>, patience: Duration) -> Result<T> {
    let me = comm.rank();
    let fault = own.as_ref().err().map(|error| fault_of(error, me));
    let first = share(comm, &fault, patience)?.into_iter().flatten().next();
    match first {
        Some(fault) if fault.rank != me => Err(fault.into()),
        _ => own,
    }
}

impl<S: Subject, C: Comm<Host>> RunRanks<S> for Processes<'_, C> {
    fn leads(&self) -> bool {
        self.comm.rank() == ROOT
    }

    fn together<T>(&mut self, own: Result<T>) -> Result<T> {
        self.all(own)
    }

    fn folder(&mut self, place: Option<&Place>) -> Result<PathBuf> {
        let own = place.map(|place| place.path().to_path_buf());
        let all = share(self.comm, &own, self.patience)?;
        let named = all.into_iter().next().flatten().context("rank 0 names no folder")?;
        Ok(if place.is_some() { named } else { (self.local)(&named) })
    }

    fn checkpoint(
        &mut self,
        config: &Config,
        place: Option<&Place>,
        warn: &dyn Fn(&str),
    ) -> Result<Option<Checkpoint>> {
        checkpoint_as(config, self.comm, place, self.local, warn)
    }

    fn agree(&mut self, run: &Run<S>) -> Result<()> {
        run.agree(self.comm)
    }

    fn train(
        &mut self,
        run: &Run<S>,
        stop: &AtomicBool,
        observe: &mut Observer<'_>,
    ) -> Result<Option<Trained>> {
        run.train_as(self.comm, stop, || None, observe)
    }

    fn fail(&mut self, error: &anyhow::Error, folder: Option<&PathBuf>, explain: &Explain) {
        let me = self.comm.rank();
        let fault = fault_of(error, me);
        self.comm.abort(&fault);
        if let Some(folder) = folder
            && fault.class != Class::Requeue
            && explain.is_in_place()
        {
            // The error that counts is the training's.
            let _ = write_error(folder, me, &fault).and_then(|()| explain.write(me));
        }
    }
}

/// Refuses a number of ranks that is not width times depth.
///
/// # Errors
/// The settings that such a number would need.
pub fn check_ranks(config: &Config, n_ranks: usize) -> Result<()> {
    let ScheduleSettings { width, depth, .. } = config.schedule;
    let pairs = layouts(n_ranks).into_iter();
    let pairs: Vec<_> =
        pairs.map(|(width, depth)| format!("--width {width} --depth {depth}")).collect();
    ensure!(
        width.checked_mul(depth) == Some(n_ranks),
        "there are {n_ranks} ranks, but width {width} x depth {depth} needs {}: start as many, or choose {}",
        width.saturating_mul(depth),
        pairs.join(", or ")
    );
    Ok(())
}
