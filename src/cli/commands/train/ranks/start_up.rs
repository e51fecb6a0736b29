//! From settings to a run that all ranks are ready to train: what fails on one of them ends all, before any writes.

use crate::settings::ScheduleSettings;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use anyhow::{Context, Result, ensure};
use chimera_comm_mpi::Mpi;
use chimera_core::comm::{Comm, Host};
use chimera_core::ids::{BucketId, Rank};

use super::shutdown::{ROOT, stuck, within};
use super::{Job, conclude, pass, together};
use crate::cli::commands::train::{Train, checks, listen, resume};
use crate::cli::parts::schedule::shape::warn_of_unread;
use crate::cli::parts::terminal::console::warn;
use crate::cli::parts::terminal::progress::Say;
use crate::device::start_threads;
use crate::formats::checkpoint::Store;
use crate::observe::Prometheus;
use crate::run::launch::layouts;
use crate::run::{Folder, PATIENCE, Place, Run, Seat, checkpoint_as, share};
use crate::settings::{Config, Transport};

/// A run that is about to be trained.
pub(super) struct ReadyRun {
    pub(super) run: Run,
    /// Where rank 0 tells of it.
    pub(super) root: Option<(Folder, Option<Prometheus>)>,
}

/// Prepares the run on all ranks, which call it together; none if it has all its steps. Its folder is `taken_over` where a
/// rank has died in the start-up before.
pub(super) fn start_up(
    train: &Train,
    config: Result<Config>,
    comm: &mut impl Comm<Host>,
    job: &Job,
    seat: Seat,
    taken_over: Option<PathBuf>,
) -> Result<Option<ReadyRun>> {
    let Job { why, liveness, sums, limit, stop, known } = job;
    let (me, n_ranks) = (comm.rank(), comm.n_ranks());
    let is_root = me == ROOT;
    let threads = if is_root { start_threads() } else { Ok(()) }; // at its end a run evaluates on them
    let config = config.and_then(|config| threads.map_err(Into::into).map(|()| config));
    let config = config.and_then(|config| check(&config, n_ranks as usize).map(|()| config));
    let patience = config.as_ref().map_or(PATIENCE, |config| config.patience().first_step);
    let config = together(comm, config, patience)?;
    let agreed = Run::agree_on_settings(&config, comm).map_err(anyhow::Error::from);
    together(comm, agreed, patience)?;
    let said = config.clone();
    let run = Run::prepare_as(config, comm, seat);
    let run = run.and_then(|run| checks::check(&run).map(|()| run));
    if let Ok(run) = &run {
        limit.expect_tensors(run.longest_tensor());
    }
    let mut run = together(comm, run, patience)?;
    let say = Say { to_stderr: train.json };
    if is_root {
        warn_of_unread(&said);
        say.line(&format!("{n_ranks} ranks over MPI ({}; {why})", Mpi::library()));
    }
    if run.config().devices.transport == Transport::Nccl {
        let version = run.nccl(me).map_err(anyhow::Error::from);
        let version = together(comm, version, patience)?;
        if is_root {
            say.line(&format!("tensors over NCCL {version}"));
        }
    }

    let claim = || match taken_over {
        Some(path) => Place::take_over(path),
        None => Place::claim(run.config()),
    };
    let place = is_root.then(claim).transpose();
    let place = together(comm, place, patience)?;
    let folder = share(comm, &place.as_ref().map(|p| p.path().to_path_buf()), patience)?;
    let folder = folder.into_iter().next().flatten().context("rank 0 names no folder")?;
    let _ = known.folder.set(folder.clone());
    let checkpoint = checkpoint_as(run.config(), comm, place.as_ref(), &warn);
    let checkpoint = together(comm, checkpoint, patience)?;
    let say_if_root = |line: &str| {
        if is_root {
            say.line(line);
        }
    };
    let resumed = resume(&mut run, checkpoint, &say_if_root);
    together(comm, resumed, patience)?;
    let agreed = run.agree(comm);
    together(comm, agreed, patience)?;
    if run.config().replicas.mpi_allreduce {
        pass("sums");
        let never = stuck(me, "the ranks do not meet for MPI's sums: one is stopped", known);
        let opened = within(patience, Some(liveness.clone()), never, || sums.open(&groups(&run)));
        together(comm, opened.map_err(|e| e.into_fault(me).into()), patience)?;
    }
    if run.first_step() == run.config().training.steps {
        let work = place.as_ref().map(|place| || train.conclude_trained(&run, place, &say));
        return conclude(comm, &run, known, work).map(|()| None);
    }
    saving(&mut run, job, &folder);
    let root = place.map(|place| {
        let prometheus = listen(run.config())?;
        Ok((place.begin(run.config(), run.first_step(), &warn)?, prometheus))
    });
    let root = together(comm, root.transpose(), patience)?;
    if root.is_some() {
        stop.concerns(&run, &folder);
    }
    Ok(Some(ReadyRun { run, root }))
}

/// Lets a run save into its folder, and explain there what its ranks did last.
pub(super) fn saving(run: &mut Run, job: &Job, folder: &Path) {
    run.save_into(store(folder), warn);
    let mut explain = job.known.explain.lock().unwrap_or_else(PoisonError::into_inner);
    *explain = Some(run.explain_in(folder));
}

/// Where the run in `folder` saves.
fn store(folder: &Path) -> Store {
    #[cfg(all(unix, debug_assertions))]
    return Store::of(folder).on(super::fault_injection::disk());
    #[cfg(not(all(unix, debug_assertions)))]
    Store::of(folder)
}

/// The replicas of each bucket.
fn groups(run: &Run) -> Vec<Vec<Rank>> {
    let (program, width) = (run.program(), run.config().schedule.width);
    let buckets = (0..program.buckets_of_update().len() as u32).map(BucketId);
    buckets.map(|bucket| program.replicas(width, bucket)).collect()
}

/// Refuses a number of ranks that is not width times depth, and reductions that the transport has not.
fn check(config: &Config, n_ranks: usize) -> Result<()> {
    ensure!(
        !config.replicas.mpi_allreduce || config.devices.transport != Transport::Nccl,
        "mpi-allreduce is MPI's, and tensors go over NCCL: choose --transport mpi, or leave it out"
    );
    let ScheduleSettings { width, depth, .. } = &config.schedule;
    let pairs: Vec<_> = layouts(n_ranks)
        .into_iter()
        .map(|(width, depth)| format!("--width {width} --depth {depth}"))
        .collect();
    ensure!(
        width.checked_mul(*depth) == Some(n_ranks),
        "there are {n_ranks} ranks, but width {width} x depth {depth} needs {}: start as many, or choose {}",
        width.saturating_mul(*depth),
        pairs.join(", or ")
    );
    Ok(())
}
