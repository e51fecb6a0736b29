//! Runs whose ranks are processes: preparation, handshakes and training.

use std::mem::take;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use chimera_core::comm::{Comm, CommError, Endpoint, Host};
use chimera_core::engine::{Patience, StepReport, handshake};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_core::interchange::{from_json, to_json};
use chimera_device::CoreWatch;
use chimera_settings::Config;
use chimera_settings::schedules::Named;

use super::gather::share;
use super::{fingerprint, replica_devices};
use crate::observe::Recorder;
use crate::run::machine::launch::Launch;
use crate::run::progress::trained::{RankTrained, merge};
use crate::run::progress::watch::Watch;
use crate::run::{Beginning, DirectTransport, Here, Run, Subject, Survivor, Trained, Transformer};

/// Timeout for ranks to reach the same point before the settings are known.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// The rank of a process in its job, and its place on its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seat {
    /// Rank of the process.
    pub rank: Rank,
    /// Ranks of the job.
    pub n_ranks: u32,
    /// Number of the process among those of this host.
    pub local: usize,
    /// Ranks of the job on this host.
    pub n_local: u32,
}

impl Seat {
    /// Returns the seat of an end of a transport, as the launcher describes it.
    pub fn launched(comm: &impl Endpoint) -> Seat {
        let (rank, n_ranks) = (comm.rank(), comm.n_ranks());
        let launch = Launch::found();
        let n_local = launch.as_ref().and_then(|launch| launch.n_local).unwrap_or(1);
        let local = launch.and_then(|launch| launch.local).map_or(rank.index(), |n| n as usize);
        Seat { rank, n_ranks, local, n_local }
    }

    fn here(self) -> Here {
        let part = f64::from(self.n_local) / f64::from(self.n_ranks);
        Here { part, own: Some((self.rank, self.local)) }
    }
}

impl<K: DirectTransport> Run<Transformer<K>> {
    /// Like [`prepare`](Run::prepare), on all ranks of a job. If the schedule is searched for, rank
    /// 0 searches for all, since the time limit could end the search elsewhere at another point.
    pub fn prepare_as(
        config: Config,
        comm: &mut impl Comm<Host>,
        seat: Seat,
    ) -> Result<Run<Transformer<K>>> {
        let here = seat.here();
        if config.schedule.name != Named::Auto || config.schedule.depth == 1 {
            return Run::prepare_with(config, None, here);
        }
        let is_root = comm.rank() == Rank(0);
        let own = is_root.then(|| Run::prepare_with(config.clone(), None, here));
        let found = own.as_ref().and_then(|run| run.as_ref().ok()?.course.found.as_ref());
        let search = Duration::try_from_secs_f64(config.schedule.search_time)?;
        let found = share(comm, &found.map(to_json), search + config.patience().first_step)?;
        match (own, found.into_iter().next().flatten()) {
            (Some(own), _) => own,
            (None, Some(text)) => {
                Run::prepare_with(config, Some(from_json(text.as_bytes())?), here)
            }
            (None, None) => bail!("rank 0 found no timetable"),
        }
    }

    /// Like [`prepare_as`](Run::prepare_as), for a process that replaces a dead rank, and so asks the others nothing.
    pub fn prepare_again(
        config: Config,
        beginning: &Beginning,
        seat: Seat,
    ) -> Result<Run<Transformer<K>>> {
        let found = beginning.timetable.as_ref().map(|text| from_json(text.as_bytes()));
        Run::prepare_with(config, found.transpose()?, seat.here())
    }

    /// Compares the settings of the ranks before they are used.
    ///
    /// # Errors
    /// A [`Fault`] that names each field in which they differ.
    pub fn agree_on_settings(config: &Config, comm: &mut impl Endpoint) -> Result<(), Fault> {
        let deadline = Instant::now() + config.patience().first_step;
        handshake(comm, &fingerprint::settings(config), deadline)
    }
}

impl<S: Subject> Run<S> {
    /// Trains the row of the rank of `comm`; all ranks of the job call it. Otherwise like
    /// [`train`](Run::train): rank 0 observes, and gets the result of the run. Another thread calls
    /// `why_over` to learn whether the job has failed.
    pub fn train_as(
        &self,
        comm: &mut impl Comm<Host>,
        stop: &AtomicBool,
        why_over: impl Fn() -> Option<CommError> + Send + 'static,
        observe: impl FnMut(&StepReport) -> Result<()> + Send,
    ) -> Result<Option<Trained>> {
        self.train_on(comm, &mut Survivor::default(), stop, why_over, observe)
    }

    /// Like [`train_as`](Run::train_as), but continues where `survivor` left another transport
    /// after a rank's death. If the run survives deaths, it is called again after each death that
    /// [is](Fault::is_death) the cause of the error, on a new transport of all ranks.
    pub fn train_on(
        &self,
        comm: &mut impl Comm<Host>,
        survivor: &mut Survivor,
        stop: &AtomicBool,
        why_over: impl Fn() -> Option<CommError> + Send + 'static,
        mut observe: impl FnMut(&StepReport) -> Result<()> + Send,
    ) -> Result<Option<Trained>> {
        let rank = comm.rank();
        let samples = self.subject.samples(&self.course);
        let cores = Mutex::new(CoreWatch::start());
        let mut observe = |report: &StepReport| {
            self.look_at_cores(&cores, report);
            observe(report)
        };
        let mut watch = Watch { by_processes: true, ..self.watch(&mut observe)? };
        let Patience { first_step, later } = self.config().patience();
        share(comm, &(), first_step)?; // clocks start once all are here
        let job = self.job(&*samples, stop);
        let traced = take(&mut survivor.traced);
        watch.recorder = watch.recorder.map(|recorder| recorder.with(traced, job.epoch));
        let ran = S::train_process(self, job, comm, why_over, &watch, survivor);
        let recorder = watch.recorder.filter(|_| rank == Rank(0));
        let traced = recorder.as_ref().map_or(Ok(Vec::new()), Recorder::finish);
        survivor.traced = recorder.map(Recorder::into_recorded).unwrap_or_default();
        let mut trained = ran?;
        let saved = trained.saved.take();
        let runs = share(comm, &trained.runs, later)?;
        if rank != Rank(0) {
            return Ok(None);
        }
        let mut ranks: Vec<_> = runs.into_iter().map(RankTrained::did).collect();
        for (of, trained) in (0..).zip(&mut ranks) {
            let depth = self.config().schedule.depth;
            let events = trained.runs.iter().flat_map(|run| &run.events);
            if events.into_iter().any(|event| event.worker.index() != of % depth) {
                let message = format!("rank {of} sent the events of another worker");
                return Err(Fault::new(Class::Mismatch, rank, message).into());
            }
        }
        if let Some(first) = ranks.first_mut() {
            *first = trained;
        }
        let core_share = cores.lock().unwrap_or_else(PoisonError::into_inner).share();
        Ok(Some(Trained { core_share, ..merge(ranks)?.with(saved, traced) }))
    }

    /// Compares the training and the data of the ranks before anything is written.
    ///
    /// # Errors
    /// A [`Fault`] that names each field in which they differ, or the devices that may not share a stage.
    pub fn agree(&self, comm: &mut impl Endpoint) -> Result<()> {
        let patience = self.config().patience().first_step;
        handshake(comm, &self.fingerprint(), Instant::now() + patience)?;
        let models = share(comm, &self.subject.device_models(), patience)?.concat();
        replica_devices::check(self.program(), self.config(), &models)
    }
}
