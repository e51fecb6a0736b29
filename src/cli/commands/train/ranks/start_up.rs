//! From settings to a run that all ranks are ready to train. An error on one rank ends all of them
//! before any writes.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use anyhow::Result;
use chimera_comm_mpi::Mpi;
use chimera_core::comm::{Comm, Host};
use chimera_core::ids::{BucketId, Rank};

use super::shutdown::{ROOT, stuck, within};
use super::{Job, conclude, pass};
use crate::cli::commands::train::{Train, checks, listen, say_resumed};
use crate::cli::parts::schedule::shape::warn_of_unread;
use crate::cli::parts::terminal::console::warn;
use crate::device::start_threads;
use crate::formats::checkpoint::Store;
use crate::observe::Prometheus;
use crate::run::{Begun, Folder, PATIENCE, Place, Processes, Resumed, Run, Seat};
use crate::settings::{Config, Transport};

/// A run that is ready for training.
pub(super) struct ReadyRun {
    pub(super) run: Run,
    /// On rank 0, the outputs of the run.
    pub(super) root: Option<(Folder, Option<Prometheus>)>,
}

/// Prepares the run on all ranks, which call this together. Returns `None` if all its steps are
/// done. `taken_over` is the folder of the run if a rank died during an earlier start.
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
    let threads = if is_root { start_threads() } else { Ok(()) }; // for the evaluation at the end
    let config = config.and_then(|config| threads.map_err(Into::into).map(|()| config));
    let patience = config.as_ref().map_or(PATIENCE, |config| config.patience().first_step);
    let said = config.as_ref().ok().cloned();
    let mut ranks = Processes::new(comm, patience);
    let mut run = ranks.prepare_checked(config, seat, |run| {
        checks::check(run)?;
        limit.expect_tensors(run.longest_tensor());
        Ok(())
    })?;
    let say = train.say();
    if is_root {
        said.iter().for_each(warn_of_unread);
        say.line(&format!("{n_ranks} ranks over MPI ({}; {why})", Mpi::library()));
    }
    if run.config().devices.transport == Transport::Nccl {
        let version = run.nccl(me).map_err(anyhow::Error::from);
        let version = ranks.all(version)?;
        if is_root {
            say.line(&format!("tensors over NCCL {version}"));
        }
    }

    let claimed = run.claim_by(ranks, |config| match taken_over {
        Some(path) => Place::take_over(path),
        None => Place::claim(config),
    })?;
    let folder = claimed.path().to_path_buf();
    let _ = known.folder.set(folder.clone());
    let mut resumed = claimed.resume(&warn)?;
    if is_root {
        say_resumed(&resumed, &say);
    }
    if resumed.run.config().replicas.mpi_allreduce {
        pass("sums");
        let never = stuck(me, "the ranks do not meet for MPI's sums: one is stopped", known);
        let groups = groups(resumed.run);
        let opened = within(patience, Some(liveness.clone()), never, || sums.open(&groups));
        resumed.ranks.all(opened.map_err(|e| e.into_fault(me).into()))?;
    }
    if resumed.is_trained() {
        let Resumed { place, .. } = resumed;
        let work = place.as_ref().map(|place| || train.conclude_trained(&run, place, &say));
        return conclude(comm, &run, known, work).map(|()| None);
    }
    let prometheus = is_root.then(|| listen(resumed.run.config())).transpose();
    let prometheus = resumed.ranks.all(prometheus)?.flatten();
    let Begun { folder: begun, explain, .. } = resumed.begin(store(&folder), warn)?;
    *known.explain.lock().unwrap_or_else(PoisonError::into_inner) = Some(explain);
    let root = begun.map(|begun| (begun, prometheus));
    if root.is_some() {
        stop.concerns(&run, &folder);
    }
    Ok(Some(ReadyRun { run, root }))
}

/// Lets a run save into its folder, and write the flight recorders of its ranks there.
pub(super) fn saving(run: &mut Run, job: &Job, folder: &Path) {
    run.save_into(store(folder), warn);
    let mut explain = job.known.explain.lock().unwrap_or_else(PoisonError::into_inner);
    *explain = Some(run.explain_in(folder));
}

/// The store of the run in `folder`.
fn store(folder: &Path) -> Store {
    #[cfg(all(unix, debug_assertions))]
    return Store::of(folder).on(super::fault_injection::disk());
    #[cfg(not(all(unix, debug_assertions)))]
    Store::of(folder)
}

/// Returns the replicas of each bucket.
fn groups(run: &Run) -> Vec<Vec<Rank>> {
    let (program, width) = (run.program(), run.config().schedule.width);
    let buckets = (0..program.buckets_of_update().len() as u32).map(BucketId);
    buckets.map(|bucket| program.replicas(width, bucket)).collect()
}
