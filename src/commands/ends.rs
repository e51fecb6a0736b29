//! How a rank of a job ends where something failed: with the first cause, its error file, and its exit code.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use chimera::core::comm::{Comm, CommError};
use chimera::core::fault::{Class, Fault};
use chimera::core::ids::Rank;
use chimera::launch::Launch;
use chimera::mpi::{Lookout, Mpi};
use chimera::training::write_error;

use super::ranks::LEAD;
use super::tell;
use crate::exit;

/// For all to write down why a run failed.
const TO_FAIL: Duration = Duration::from_secs(2);
/// From the launcher's signal after a death, for the cause to come: a launcher may kill soon.
const TO_HEAR: Duration = Duration::from_millis(20);
/// After that, for the engine to notice by itself, and to write down what it did.
const TO_NOTICE: Duration = Duration::from_millis(280);

/// The folder of the run, once it is known.
pub(super) type Known = Arc<Mutex<Option<PathBuf>>>;

/// Tells all others why, writes it down, and ends the process when all have had time to do the same.
pub(super) fn fail(mut mpi: Mpi, error: &anyhow::Error, known: &Known) -> ! {
    let me = mpi.rank();
    let fault = fault_of(error, me);
    mpi.abort(&fault);
    note(me, &fault, known);
    // If the lead is gone, whoever noticed speaks for it.
    let is_lead_gone = matches!(fault.class, Class::PeerLost | Class::Timeout);
    if me == LEAD || is_lead_gone && fault.peer == Some(LEAD) && fault.rank == me {
        tell(format_args!("error: {error:#}"));
    }
    let code = fault.class.code();
    if let Err(CommError::Timeout { .. }) = mpi.close(TO_FAIL) {
        mpi.end_job(code); // somebody hangs
    }
    std::process::exit(code.into())
}

/// After the end of a rank the launcher sends a signal, and soon kills whoever is left: also those that compute,
/// and have not seen yet why all is over.
pub(super) fn end_if_over(me: Rank, lookout: &Lookout, known: &Known) {
    if lookout.why_over().is_none() {
        return;
    }
    thread::sleep(TO_HEAR);
    if let Some(why) = lookout.why_over() {
        let fault = why.into_fault(me);
        note(me, &fault, known);
        thread::sleep(TO_NOTICE);
        std::process::exit(fault.class.code().into());
    }
}

/// Writes the error file of this rank, if the run has a folder: once, since the first cause counts.
fn note(me: Rank, fault: &Fault, known: &Known) {
    let folder = known.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(also) = folder.and_then(|folder| write_error(&folder, me, fault).err()) {
        tell(format_args!("{also:#}")); // the error that counts is the first
    }
}

pub(super) fn fault_of(error: &anyhow::Error, me: Rank) -> Fault {
    match error.downcast_ref::<Fault>() {
        Some(fault) => fault.clone(),
        None => Fault::new(exit::class(error), me, format!("{error:#}")),
    }
}

/// Gives up when `work` takes longer: MPI itself cannot be told how long to wait where all ranks meet.
pub(super) fn within<T>(
    patience: Duration,
    give_up: impl FnOnce() + Send + 'static,
    work: impl FnOnce() -> T,
) -> T {
    let (done, is_done) = mpsc::channel::<()>();
    thread::spawn(move || {
        if is_done.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            give_up();
        }
    });
    let result = work();
    drop(done);
    result
}

pub(super) fn never_started() {
    let me =
        Launch::found().map_or_else(|| "a rank".into(), |launch| format!("rank {}", launch.rank));
    tell(format_args!(
        "error: {me}: MPI does not start: a rank is stopped, or was never started (--start-timeout)"
    ));
    std::process::exit(Class::Timeout.code().into());
}

/// What ends this process once some meeting of all ranks was waited for too long.
pub(super) fn stuck(me: Rank, why: &'static str, known: &Known) -> impl FnOnce() + Send + use<> {
    let known = Arc::clone(known);
    move || {
        let fault = Fault::new(Class::Timeout, me, why);
        note(me, &fault, &known);
        tell(format_args!("error: {fault}"));
        std::process::exit(fault.class.code().into());
    }
}
