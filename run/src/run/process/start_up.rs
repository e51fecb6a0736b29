//! From settings to a run that all ranks are ready to train. An error on one rank ends all of them
//! before any writes.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use anyhow::Result;
use chimera_core::comm::{Comm, Host};
use chimera_core::ids::{BucketId, Rank};
use chimera_settings::{Config, Transport};

use super::shutdown::{ROOT, stuck, within};
use super::{Callbacks, Life, RunOf, conclude};
use crate::run::{Begun, Folder, PATIENCE, Place, Processes, Resumed, Run, Seat, Subject};

/// A run that is ready for training.
pub(super) struct ReadyRun<P: Callbacks> {
    pub(super) run: RunOf<P>,
    /// On rank 0, the folder of the run and its other outputs.
    pub(super) root: Option<(Folder, P::Outputs)>,
}

/// Prepares the run on all ranks, which call this together. Returns `None` if all its steps are
/// done. `taken_over` is the folder of the run if a rank died during an earlier start.
pub(super) fn start_up<P: Callbacks>(
    life: &Life<'_, P>,
    config: Result<Config>,
    mut comm: &mut dyn Comm<Host>,
    seat: Seat,
    taken_over: Option<PathBuf>,
) -> Result<Option<ReadyRun<P>>> {
    let Life { program, control, known, .. } = life;
    let comm = &mut comm;
    let (me, n_ranks) = (seat.rank, seat.n_ranks);
    let is_root = me == ROOT;
    let started = if is_root { program.start() } else { Ok(()) };
    let config = config.and_then(|config| started.map(|()| config));
    let patience = config.as_ref().map_or(PATIENCE, |config| config.patience().first_step);
    let said = config.as_ref().ok().cloned();
    let local = |path: &Path| program.local(path);
    let mut ranks = Processes::new(comm, patience).with_local(&local);
    let mut run = ranks.prepare_checked(config, seat, |run| {
        program.check(run)?;
        control.expect_tensors(run.longest_tensor());
        Ok(())
    })?;
    if is_root {
        said.iter().for_each(|config| program.prepared(config, n_ranks));
    }
    if run.config().devices.transport == Transport::Nccl {
        let version = run.nccl(me).map_err(anyhow::Error::from);
        let version = ranks.all(version)?;
        if is_root {
            program.say(&format!("tensors over NCCL {version}"));
        }
    }

    let claimed = run.claim_by(ranks, |config| match taken_over {
        Some(path) => Place::take_over(path),
        None => Place::claim(config),
    })?;
    let folder = claimed.path().to_path_buf();
    let _ = known.folder.set(folder.clone());
    let mut resumed = claimed.resume(&known.console.warn)?;
    if is_root {
        program.resumed(resumed.run, resumed.from.as_deref(), &resumed.changes);
    }
    if resumed.run.config().replicas.mpi_allreduce {
        program.reached("sums");
        let transport = known.console.transport;
        let why = format!("the ranks do not meet for {transport}'s sums: one is stopped");
        let never = stuck(me, &why, known);
        let groups = groups(resumed.run);
        let opened = within(patience, Some(control.clone()), never, || control.open_sums(&groups));
        resumed.ranks.all(opened.map_err(|e| e.into_fault(me).into()))?;
    }
    if resumed.is_trained() {
        let Resumed { place, .. } = resumed;
        let work = place.as_ref().map(|place| || program.conclude_trained(&run, place));
        return conclude(comm, &run, known, work).map(|()| None);
    }
    let outputs = is_root.then(|| program.open(resumed.run.config())).transpose();
    let outputs = resumed.ranks.all(outputs)?;
    let begun = resumed.begin(program.store(&folder), known.console.warn)?;
    let Begun { folder: begun, explain, .. } = begun;
    *known.explain.lock().unwrap_or_else(PoisonError::into_inner) = Some(explain);
    let root = begun.zip(outputs);
    if root.is_some() {
        program.begun(&run, &folder);
    }
    Ok(Some(ReadyRun { run, root }))
}

/// Lets a run save into its folder, and write the flight recorders of its ranks there.
pub(super) fn saving<P: Callbacks>(run: &mut RunOf<P>, life: &Life<'_, P>, folder: &Path) {
    run.save_into(life.program.store(folder), life.known.console.warn);
    let mut explain = life.known.explain.lock().unwrap_or_else(PoisonError::into_inner);
    *explain = Some(run.explain_in(folder));
}

/// Returns the replicas of each bucket.
fn groups<S: Subject>(run: &Run<S>) -> Vec<Vec<Rank>> {
    let (program, width) = (run.program(), run.config().schedule.width);
    let buckets = (0..program.buckets_of_update().len() as u32).map(BucketId);
    buckets.map(|bucket| program.replicas(width, bucket)).collect()
}
