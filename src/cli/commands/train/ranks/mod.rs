//! `chimera train` as one of the ranks of a launcher.
//!
//! Every rank reads the same settings, prepares the same run, and trains its part; only rank 0
//! prints, owns the folder of the run, and concludes. An error on one rank before the training ends
//! all ranks before any of them writes. A later error becomes the cause on all ranks.

#[cfg(all(unix, debug_assertions))]
mod fault_injection;
mod shutdown;
mod start_up;
mod surviving;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use chimera_comm_mpi::{Limit, LivenessMonitor, Mpi, Sums};
use chimera_core::comm::{Comm, Endpoint, Host};
use chimera_core::engine::Patience;
use chimera_core::fault::{Fault, panicked};

use self::shutdown::{
    Known, ROOT, close, end_if_over, end_now, fail, is_failed, note_if_over, start,
};
use self::start_up::{ReadyRun, start_up};
use super::{Stop, Train, told};
use crate::run::{Run, Seat, conclude as conclude_run, fault_of};
use crate::settings::{Config, Survive};

/// Timeout for all ranks to leave, when there are no settings.
const TO_LEAVE: Duration = Duration::from_secs(60);

/// A function to run on all ranks, with the transport and its name; rank 0 returns a result.
pub(crate) type RankWork<'w, T> =
    dyn Fn(&mut dyn Comm<Host>, &str) -> Result<Option<T>, Fault> + 'w;

/// The environment of a rank, apart from the transport.
struct Job<'j> {
    /// The reason why it is a rank, in words.
    why: &'j str,
    liveness: LivenessMonitor,
    sums: Sums,
    limit: Limit,
    /// The request to stop by a signal.
    stop: &'j Stop,
    known: &'j Arc<Known>,
}

/// Trains as the rank of this process, until the end of the rank.
pub(crate) fn run(train: &Train, config: Result<Config>, why: &str) -> Result<()> {
    pass("start");
    if let Ok(config) = &config
        && config.devices.survive != Survive::Off
    {
        return surviving::run(train, config, why);
    }
    let patience = config.as_ref().map_or(Patience::default(), Config::patience);
    let mut mpi = start(patience.first_step, Mpi::start)?;
    pass("met");
    let known = Arc::new(Known::default());
    let (me, liveness, watched) = (mpi.rank(), mpi.liveness(), Arc::clone(&known));
    let stop = Stop::on_signal(move || {
        end_if_over(me, &liveness, &watched);
        me == ROOT
    })?;
    note_if_over(me, mpi.liveness(), Arc::clone(&known))?;
    let (liveness, sums, limit) = (mpi.liveness(), mpi.sums(), mpi.limit());
    let job = Job { why, liveness, sums, limit, stop: &stop, known: &known };
    let work = AssertUnwindSafe(|| {
        #[cfg(all(unix, debug_assertions))]
        let mut mpi = fault_injection::Struck::new(&mut mpi);
        as_rank(train, config, &mut mpi, job)
    });
    let outcome = catch_unwind(work).unwrap_or_else(|panic| Err(panicked(me, &*panic).into()));
    pass("leave");
    let outcome = match outcome {
        Err(error) if is_failed(&error, me) => Err(error),
        // A peer may also be lost while leaving.
        sound => close(&mut mpi, patience.later, &known).map_err(anyhow::Error::from).and(sound),
    };
    pass("left");
    match outcome {
        Err(error) if is_failed(&error, me) => fail(mpi, &error, &known),
        Err(error) if me != ROOT => std::process::exit(fault_of(&error, me).class.code().into()),
        outcome => outcome,
    }
}

/// A point for faults in tests.
fn pass(point: &str) {
    #[cfg(all(unix, debug_assertions))]
    fault_injection::at(|| point.into());
    let _ = point;
}

/// Lets `work` use MPI, passing the name of the library, and leaves together with the other ranks.
pub(crate) fn with<T>(work: &RankWork<'_, T>) -> Result<Option<T>> {
    let mut mpi = start(Patience::default().first_step, Mpi::start)?;
    ensure!(mpi.n_ranks() > 1, "one rank has nobody to reach: start several with mpirun or srun");
    let worked = work(&mut mpi, &Mpi::library())?;
    close(&mut mpi, TO_LEAVE, &Arc::default())?;
    Ok(worked)
}

/// Runs a rank from the first meeting to the last.
fn as_rank(
    train: &Train,
    config: Result<Config>,
    mut comm: &mut dyn Comm<Host>,
    job: Job,
) -> Result<()> {
    let Job { stop, known, .. } = job;
    let watching = job.liveness.clone();
    let why_over = move || watching.why_over();
    let comm = &mut comm;
    let seat = Seat::launched(comm);
    let Some(ReadyRun { run, root }) = start_up(train, config, comm, &job, seat, None)? else {
        return Ok(());
    };
    let Some((mut folder, prometheus)) = root else {
        run.train_as(comm, stop.flag(), why_over, |_| Ok(()))?;
        return conclude(comm, &run, known, None::<fn() -> Result<()>>);
    };
    let say = train.say();
    let trained = told(&run, &mut folder, prometheus.as_ref(), &say, |observe| {
        let trained = run.train_as(comm, stop.flag(), why_over, observe)?;
        trained.context("rank 0 got nothing")
    });
    let ended = trained.and_then(|trained| {
        conclude(comm, &run, known, Some(|| train.conclude(&run, &folder, trained, &say)))
    });
    train.close(&run, folder.path(), &say, &ended);
    ended
}

/// Lets the root conclude, however long that takes, and returns its outcome on all ranks. Meanwhile
/// the root regularly tells the others that it is alive.
fn conclude(
    comm: &mut impl Endpoint,
    run: &Run,
    known: &Known,
    work: Option<impl FnOnce() -> Result<()> + Send>,
) -> Result<()> {
    let survives = run.config().devices.survive != Survive::Off;
    let patience = run.config().patience().later;
    conclude_run(comm, patience, work, |comm, fault| {
        if survives && fault.is_death() { fault } else { end_now(comm, &fault, known) }
    })
}
