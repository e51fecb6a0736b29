//! `chimera train` as one of the ranks that a launcher started.
//!
//! Every rank reads the same settings, prepares the same run, and trains its row; rank 0 alone prints, owns
//! the folder of the run, and concludes. What fails on one rank before the training ends all, before any
//! writes; what fails later makes that rank's fault the cause of all.

#[cfg(all(unix, debug_assertions))]
mod fault_injection;
mod shutdown;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use chimera_comm_mpi::{Limit, LivenessMonitor, Mpi, Sums};
use chimera_core::comm::{Comm, CommError, Endpoint, Host};
use chimera_core::engine::Patience;
use chimera_core::fault::{Class, panicked};
use chimera_core::ids::{BucketId, Rank};

use self::shutdown::{
    Known, ROOT, close, end_if_over, end_now, fail, fault_of, note_if_over, start, stuck, within,
};
use super::{Stop, Train, listen, resume};
use crate::cli::parts::console::warn;
use crate::cli::parts::progress::Say;
use crate::cli::parts::shape::warn_of_unread;
use crate::formats::checkpoint::Store;
use crate::run::launch::layouts;
use crate::run::{PATIENCE, Place, Run, checkpoint_as, share};
use crate::settings::{Config, Transport};

/// For all to leave, where there are no settings that say so.
const TO_LEAVE: Duration = Duration::from_secs(60);
/// How often the lead tells the others that it is not done yet.
const TELL: Duration = Duration::from_secs(1);

/// What ranks do with a transport of this name; rank 0 has a result.
pub(crate) type Work<T> = dyn Fn(&mut dyn Comm<Host>, &str) -> Result<Option<T>, CommError>;

/// What a rank has beside the transport.
struct Job<'j> {
    /// Why it is a rank, in words.
    why: &'j str,
    liveness: LivenessMonitor,
    sums: Sums,
    limit: Limit,
    /// Whether a signal asks for the end.
    stop: &'j Stop,
    known: &'j Arc<Known>,
}

/// Trains as the rank that this process is, and ends it.
pub(crate) fn run(train: &Train, config: Result<Config>, why: &str) -> Result<()> {
    pass("start");
    let patience = config.as_ref().map_or(Patience::default(), Config::patience);
    let mut mpi = start(patience.first_step)?;
    pass("met");
    let known = Arc::new(Known::default());
    let (me, liveness, watched) = (mpi.rank(), mpi.liveness(), Arc::clone(&known));
    let stop = Stop::on_signal(move || {
        end_if_over(me, &liveness, &watched);
        me == ROOT
    })?;
    note_if_over(me, mpi.liveness(), Arc::clone(&known));
    let (liveness, sums, limit) = (mpi.liveness(), mpi.sums(), mpi.limit());
    let job = Job { why, liveness, sums, limit, stop: &stop, known: &known };
    let work = AssertUnwindSafe(|| {
        #[cfg(all(unix, debug_assertions))]
        let mut mpi = fault_injection::Struck::new(&mut mpi);
        as_rank(train, config, &mut mpi, job)
    });
    let outcome = catch_unwind(work).unwrap_or_else(|panic| Err(panicked(me, &*panic).into()));
    pass("leave");
    let is_failed = |error: &anyhow::Error| fault_of(error, me).class != Class::Requeue;
    let outcome = match outcome {
        Err(error) if is_failed(&error) => Err(error),
        // A peer may be lost on the way out too.
        sound => close(&mut mpi, patience.later, &known).map_err(anyhow::Error::from).and(sound),
    };
    pass("left");
    match outcome {
        Err(error) if is_failed(&error) => fail(mpi, &error, &known),
        Err(error) if me != ROOT => std::process::exit(fault_of(&error, me).class.code().into()),
        outcome => outcome,
    }
}

/// A point at which tests strike.
fn pass(point: &str) {
    #[cfg(all(unix, debug_assertions))]
    fault_injection::at(|| point.into());
    let _ = point;
}

/// Lets `work` use MPI, which it is told the name of, and leaves together with the other ranks.
pub(crate) fn with<T>(work: &Work<T>) -> Result<Option<T>> {
    let mut mpi = start(Patience::default().first_step)?;
    let me = mpi.rank();
    ensure!(mpi.n_ranks() > 1, "one rank has nobody to reach: start several with mpirun or srun");
    let worked = work(&mut mpi, &Mpi::library()).map_err(|e| e.into_fault(me))?;
    close(&mut mpi, TO_LEAVE, &Arc::default())?;
    Ok(worked)
}

/// All that a rank does between meeting and leaving the others.
fn as_rank(
    train: &Train,
    config: Result<Config>,
    mut comm: &mut dyn Comm<Host>,
    job: Job,
) -> Result<()> {
    let Job { why, liveness, sums, limit, stop, known } = job;
    let watching = liveness.clone();
    let why_over = move || watching.why_over();
    let (is_root, n_ranks) = (comm.rank() == ROOT, comm.n_ranks());
    let comm = &mut comm;
    let config = config.and_then(|config| check(&config, n_ranks as usize).map(|()| config));
    let patience = config.as_ref().map_or(PATIENCE, |config| config.patience().first_step);
    let config = together(comm, config, patience)?;
    let agreed = Run::agree_on_settings(&config, comm).map_err(anyhow::Error::from);
    together(comm, agreed, patience)?;
    let run = Run::prepare_as(config, comm);
    if let Ok(run) = &run {
        limit.expect_tensors(run.longest_tensor());
    }
    let mut run = together(comm, run, patience)?;
    let say = Say { to_stderr: train.json };
    if is_root {
        warn_of_unread(run.config());
        say.line(&format!("{n_ranks} ranks over MPI ({}; {why})", Mpi::library()));
    }
    if run.config().transport == Transport::Nccl {
        let version = run.nccl(comm.rank()).map_err(anyhow::Error::from);
        let version = together(comm, version, patience)?;
        if is_root {
            say.line(&format!("tensors over NCCL {version}"));
        }
    }

    let place = is_root.then(|| Place::claim(run.config())).transpose();
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
    if run.config().mpi_allreduce {
        let me = comm.rank();
        pass("sums");
        let never = stuck(me, "the ranks do not meet for MPI's sums: one is stopped", known);
        let opened = within(patience, Some(liveness), never, || sums.open(&groups(&run)));
        together(comm, opened.map_err(|e| e.into_fault(me).into()), patience)?;
    }
    if run.first_step() == run.config().steps {
        let work = place.as_ref().map(|place| || train.conclude_trained(&run, place, &say));
        return conclude(comm, &run, known, work);
    }
    run.save_into(store(&folder), warn);
    let _ = known.explain.set(run.explain_in(&folder));

    let begun = place.map(|place| {
        let prometheus = listen(run.config())?;
        Ok((place.begin(run.config(), run.first_step(), &warn)?, prometheus))
    });
    let Some((mut folder, prometheus)) = together(comm, begun.transpose(), patience)? else {
        run.train_as(comm, stop.flag(), why_over, |_| Ok(()))?;
        return conclude(comm, &run, known, None::<fn() -> Result<()>>);
    };
    stop.concerns(&run, folder.path());
    let trained = train.train(&run, &mut folder, prometheus.as_ref(), &say, |observe| {
        let trained = run.train_as(comm, stop.flag(), why_over, observe)?;
        trained.context("rank 0 got nothing")
    });
    let ended = trained.and_then(|trained| {
        conclude(comm, &run, known, Some(|| train.conclude(&run, &folder, trained, &say)))
    });
    train.close(&run, folder.path(), &say, &ended);
    ended
}

/// Where the run in `folder` saves.
fn store(folder: &Path) -> Store {
    #[cfg(all(unix, debug_assertions))]
    return Store::of(folder).on(fault_injection::disk());
    #[cfg(not(all(unix, debug_assertions)))]
    Store::of(folder)
}

/// Lets the lead conclude, however long that takes, and makes its outcome that of all: meanwhile it tells the
/// others now and then that it is there.
fn conclude(
    comm: &mut impl Endpoint,
    run: &Run,
    known: &Known,
    work: Option<impl FnOnce() -> Result<()> + Send>,
) -> Result<()> {
    let patience = run.config().patience().later;
    thread::scope(|scope| {
        let work = work.map(|work| scope.spawn(work));
        loop {
            let told = Instant::now();
            let is_done = || work.as_ref().is_none_or(|work| work.is_finished());
            while !is_done() && told.elapsed() < TELL {
                thread::sleep(Duration::from_millis(2));
            }
            match share(comm, &is_done(), patience) {
                Ok(all) if all.iter().all(|is_done| *is_done) => break,
                Ok(_) => {}
                Err(fault) if is_done() => return Err(fault.into()),
                Err(fault) => end_now(comm, &fault, known), // the work would go on for as long as it takes
            }
        }
        let me = comm.rank();
        let join = |work: thread::ScopedJoinHandle<'_, Result<()>>| {
            work.join().unwrap_or_else(|panic| Err(panicked(me, &*panic).into()))
        };
        together(comm, work.map_or(Ok(()), join), patience)
    })
}

/// The replicas of each bucket.
fn groups(run: &Run) -> Vec<Vec<Rank>> {
    let (program, width) = (run.program(), run.config().width);
    let buckets = (0..program.buckets_of_update().len() as u32).map(BucketId);
    buckets.map(|bucket| program.replicas(width, bucket)).collect()
}

/// Refuses a number of ranks that is not width times depth, and reductions that the transport has not.
fn check(config: &Config, n_ranks: usize) -> Result<()> {
    ensure!(
        !config.mpi_allreduce || config.transport != Transport::Nccl,
        "mpi-allreduce is MPI's, and tensors go over NCCL: choose --transport mpi, or leave it out"
    );
    let Config { width, depth, .. } = config;
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

/// What all ranks come to: an error of any is an error of all, the first rank's.
fn together<T>(comm: &mut impl Endpoint, outcome: Result<T>, patience: Duration) -> Result<T> {
    let me = comm.rank();
    let own = outcome.as_ref().err().map(|error| fault_of(error, me));
    let first = share(comm, &own, patience)?.into_iter().flatten().next();
    match first {
        Some(fault) if fault.rank != me => Err(fault.into()),
        _ => outcome,
    }
}
