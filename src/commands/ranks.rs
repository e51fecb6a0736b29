//! `chimera train` as one of the ranks that a launcher started.
//!
//! Every rank reads the same settings, prepares the same run, and trains its row; rank 0 alone prints, owns
//! the folder of the run, and concludes. What fails on one rank before the training ends all, before any
//! writes; what fails later makes that rank's fault the cause of all.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use chimera::checkpoint::{Checkpoint, Store};
use chimera::core::comm::{Comm, CommError, Host};
use chimera::core::engine::panicked;
use chimera::core::fault::{Class, Fault};
use chimera::core::ids::Rank;
use chimera::device::Precision;
use chimera::launch::{Transport, layouts};
use chimera::mpi::{Lookout, Mpi};
use chimera::settings::Config;
use chimera::training::{Place, Run, share, write_error};

use super::progress::Say;
use super::train::{Train, listen, resume, stop_on_signal, warn};
use crate::exit;

/// The rank that prints.
const LEAD: Rank = Rank(0);
/// For the lead to conclude, while the others wait to leave.
const TO_CONCLUDE: Duration = Duration::from_secs(24 * 3600);
/// For all to write down why a run failed.
const TO_FAIL: Duration = Duration::from_secs(2);
/// From the launcher's signal after a death, for the engine to notice by itself.
const TO_NOTICE: Duration = Duration::from_millis(300);

/// What ranks do with a transport of this name; rank 0 has a result.
pub(super) type Work<T> = dyn Fn(&mut dyn Comm<Host>, &str) -> Result<Option<T>, CommError>;

/// The folder of the run, once it is known.
type Known = Arc<Mutex<Option<PathBuf>>>;

/// Trains as the rank that this process is, and ends it.
pub(super) fn run(train: &Train, config: Result<Config>, why: &str) -> Result<()> {
    let mut mpi = Mpi::start().map_err(|e| e.into_fault(LEAD))?;
    let known = Known::default();
    let (me, lookout, folder) = (mpi.rank(), mpi.lookout(), Arc::clone(&known));
    let stop = stop_on_signal(move || end_if_dead(me, &lookout, &folder))?;
    let work = AssertUnwindSafe(|| as_rank(train, config, why, &mut mpi, &stop, &known));
    let outcome = catch_unwind(work).unwrap_or_else(|panic| Err(panicked(me, &*panic).into()));
    let is_failed = |error: &anyhow::Error| fault_of(error, me).class != Class::Requeue;
    let outcome = match outcome {
        Err(error) if is_failed(&error) => Err(error),
        // A peer may be lost on the way out too.
        sound => mpi.close(TO_CONCLUDE).map_err(|e| e.into_fault(me).into()).and(sound),
    };
    match outcome {
        Err(error) if is_failed(&error) => fail(mpi, &error, &known),
        outcome if me == LEAD => outcome,
        _ => Ok(()),
    }
}

/// Lets `work` use MPI, which it is told the name of, and leaves together with the other ranks.
pub(super) fn with<T>(work: &Work<T>) -> Result<Option<T>> {
    let mut mpi = Mpi::start().map_err(|e| e.into_fault(LEAD))?;
    let me = mpi.rank();
    ensure!(mpi.n_ranks() > 1, "one rank has nobody to reach: start several with mpirun or srun");
    let worked = work(&mut mpi, &Mpi::library()).map_err(|e| e.into_fault(me))?;
    mpi.close(TO_CONCLUDE).map_err(|e| e.into_fault(me))?;
    Ok(worked)
}

/// All that a rank does between meeting and leaving the others.
fn as_rank(
    train: &Train,
    config: Result<Config>,
    why: &str,
    mpi: &mut Mpi,
    stop: &AtomicBool,
    known: &Known,
) -> Result<()> {
    let (is_lead, n_ranks) = (mpi.rank() == LEAD, mpi.n_ranks());
    let config = config.and_then(|config| check(&config, n_ranks as usize).map(|()| config));
    let config = together(mpi, config)?;
    let run = Run::prepare_as(config, mpi);
    let mut run = together(mpi, run)?;
    let say = Say { to_stderr: train.json };
    if is_lead {
        say.line(&format!("{n_ranks} ranks over MPI ({}; {why})", Mpi::library()));
    }
    #[cfg(feature = "nccl")]
    if run.config().transport == Transport::Nccl {
        let version = together(mpi, run.nccl(mpi.rank()).map_err(anyhow::Error::from))?;
        if is_lead {
            say.line(&format!("tensors over NCCL {version}"));
        }
    }

    let claimed = is_lead.then(|| {
        let place = Place::claim(run.config())?;
        let checkpoint = place.checkpoint(run.config(), &warn)?;
        Ok((place, checkpoint))
    });
    let claimed = together(mpi, claimed.transpose())?;
    let own = claimed.as_ref().map(|(place, checkpoint)| {
        (place.path().to_path_buf(), checkpoint.as_ref().map(|c| c.path().to_path_buf()))
    });
    let found = share(mpi, &own)?.into_iter().next().flatten();
    let (folder, path) = found.context("rank 0 names no folder")?;
    *known.lock().unwrap_or_else(PoisonError::into_inner) = Some(folder.clone());
    let (place, checkpoint) = match claimed {
        Some((place, checkpoint)) => (Some(place), Ok(checkpoint)),
        None => (None, path.as_deref().map(Checkpoint::open).transpose()),
    };
    let say_if_lead = |line: &str| {
        if is_lead {
            say.line(line);
        }
    };
    let resumed = checkpoint
        .map_err(anyhow::Error::from)
        .and_then(|checkpoint| resume(&mut run, checkpoint, &say_if_lead));
    together(mpi, resumed)?;
    let agreed = run.agree(mpi).map_err(anyhow::Error::from);
    together(mpi, agreed)?;
    if run.first_step() == run.config().steps {
        say_if_lead("nothing is left to train: raise --steps to go on");
        return Ok(());
    }
    run.save_into(Store::of(&folder), warn);
    run.explain_in(&folder);

    let begun = place.map(|place| {
        let prometheus = listen(run.config())?;
        Ok((place.begin(run.config(), run.first_step())?, prometheus))
    });
    let lookout = mpi.lookout();
    let is_over = move || lookout.is_over();
    match together(mpi, begun.transpose())? {
        Some((mut folder, prometheus)) => {
            let outcome = train.train(&run, &mut folder, prometheus, &say, |observe| {
                let trained = run.train_as(mpi, stop, is_over, observe)?;
                trained.context("rank 0 got nothing")
            });
            say.line(&format!("run: {}", folder.path().display()));
            outcome
        }
        None => run.train_as(mpi, stop, is_over, |_| Ok(())).map(drop),
    }
}

/// Refuses a number of ranks that is not width times depth, and numbers that do not travel.
fn check(config: &Config, n_ranks: usize) -> Result<()> {
    ensure!(
        config.precision == Precision::F32 || config.transport == Transport::Nccl,
        "MPI carries f32 between the ranks: choose --precision f32, or --transport nccl or threads"
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
fn together<T>(mpi: &mut Mpi, outcome: Result<T>) -> Result<T> {
    let me = mpi.rank();
    let own = outcome.as_ref().err().map(|error| fault_of(error, me));
    let first = share(mpi, &own)?.into_iter().flatten().next();
    match first {
        Some(fault) if fault.rank != me => Err(fault.into()),
        _ => outcome,
    }
}

/// Tells all others why, writes it down, and ends the process when all have had time to do the same.
fn fail(mut mpi: Mpi, error: &anyhow::Error, known: &Known) -> ! {
    let me = mpi.rank();
    let fault = fault_of(error, me);
    mpi.abort(&fault);
    note(me, &fault, known);
    // If the lead is gone, whoever noticed speaks for it.
    let is_lead_gone = matches!(fault.class, Class::PeerLost | Class::Timeout);
    if me == LEAD || is_lead_gone && fault.peer == Some(LEAD) && fault.rank == me {
        eprintln!("error: {error:#}");
    }
    let code = fault.class.code();
    if let Err(CommError::Timeout { .. }) = mpi.close(TO_FAIL) {
        mpi.end_job(code); // somebody hangs
    }
    std::process::exit(code.into())
}

/// After a peer's death the launcher sends a signal, and soon kills whoever is left.
fn end_if_dead(me: Rank, lookout: &Lookout, known: &Known) {
    if let Some(dead) = lookout.dead() {
        std::thread::sleep(TO_NOTICE);
        let message = format!("{dead} ended while {me} computed");
        let fault = Fault { peer: Some(dead), ..Fault::new(Class::PeerLost, me, message) };
        note(me, &fault, known);
        std::process::exit(fault.class.code().into());
    }
}

/// Writes the error file of this rank, if the run has a folder: once, since the first cause counts.
fn note(me: Rank, fault: &Fault, known: &Known) {
    let folder = known.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(also) = folder.and_then(|folder| write_error(&folder, me, fault).err()) {
        eprintln!("{also:#}"); // the error that counts is the first
    }
}

fn fault_of(error: &anyhow::Error, me: Rank) -> Fault {
    match error.downcast_ref::<Fault>() {
        Some(fault) => fault.clone(),
        None => Fault::new(exit::class(error), me, format!("{error:#}")),
    }
}
