//! How a rank of a job ends where something failed: with the first cause, its error file, and its exit code.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use chimera_comm_mpi::{LivenessMonitor, Mpi};
use chimera_core::comm::{CommError, Endpoint};
use chimera_core::engine::ungathered;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;

use crate::cli::parts::terminal::console::{tell, warn};
use crate::device::NoThread;
use crate::observe::Explain;
use crate::run::launch::Launch;
use crate::run::{fault_of, write_error};

/// The rank that prints.
pub(super) const ROOT: Rank = Rank(0);

/// For all to write down why a run failed.
const TO_FAIL: Duration = Duration::from_secs(2);
/// How often a meeting of all ranks is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// From the launcher's signal after a death, for the cause to come: a launcher may kill soon.
const TO_HEAR: Duration = Duration::from_millis(20);
/// For all to notice a death by themselves, and to write down what they did.
const TO_NOTICE: Duration = Duration::from_millis(280);

/// What is told of this rank where it ends, as far as it is known.
#[derive(Default)]
pub(super) struct Known {
    /// The folder of the run.
    pub(super) folder: OnceLock<PathBuf>,
    pub(super) explain: Mutex<Option<Arc<Explain>>>,
    /// Set by who writes it down: the first cause counts.
    noted: AtomicBool,
    /// Set by who prints it.
    told: AtomicBool,
}

impl Known {
    /// Prints why the run ends, once.
    fn tell(&self, error: impl Display) {
        if !self.told.swap(true, Ordering::Relaxed) {
            tell(format_args!("error: {error}"));
        }
    }
}

/// Tells all others why, writes it down, and ends the process when all have had time to do the same.
pub(super) fn fail(mut mpi: Mpi, error: &anyhow::Error, known: &Known) -> ! {
    let fault = fault_of(error, mpi.rank());
    announce(&mut mpi, &fault, format_args!("{error:#}"), known);
    let code = fault.class.code();
    let never_ends = move |_| std::process::exit(code.into());
    if let Err(CommError::Timeout { .. }) =
        within(TO_FAIL * 2, None, never_ends, || mpi.close(TO_FAIL))
    {
        mpi.end_job(code); // somebody hangs
    }
    std::process::exit(code.into())
}

/// Ends the process while some of its work goes on, which the others learn.
pub(super) fn end_now(comm: &mut impl Endpoint, fault: &Fault, known: &Known) -> ! {
    announce(comm, fault, fault, known);
    std::process::exit(fault.class.code().into())
}

/// Tells the other ranks, the folder of the run, and from one rank whoever started it.
pub(super) fn announce(
    comm: &mut impl Endpoint,
    fault: &Fault,
    error: impl Display,
    known: &Known,
) {
    let me = comm.rank();
    comm.abort(fault);
    note(me, fault, known);
    // If the lead is gone, whoever noticed speaks for it.
    let is_lead_gone = matches!(fault.class, Class::PeerLost | Class::Timeout);
    if me == ROOT || is_lead_gone && fault.peer == Some(ROOT) && fault.rank == me {
        known.tell(error);
    }
    if fault.class == Class::PeerLost {
        thread::sleep(TO_NOTICE); // soon after the first has ended, a launcher kills the others
    }
}

/// After the end of a rank the launcher sends a signal, and soon kills whoever is left: also those that compute,
/// and have not seen yet why all is over.
pub(super) fn end_if_over(me: Rank, liveness: &LivenessMonitor, known: &Known) {
    if liveness.why_over().is_none() {
        return;
    }
    thread::sleep(TO_HEAR);
    if let Some(why) = liveness.why_over() {
        let fault = why.into_fault(me);
        note(me, &fault, known);
        if me == ROOT {
            known.tell(&fault);
        }
        thread::sleep(TO_NOTICE);
        std::process::exit(fault.class.code().into());
    }
}

/// Writes down why the job is over where this rank itself has not in time: it computes, or gives up what its device does,
/// and the others do not wait for that.
///
/// # Errors
/// If the system gives no thread.
pub(super) fn note_if_over(
    me: Rank,
    liveness: LivenessMonitor,
    known: Arc<Known>,
) -> Result<(), NoThread> {
    let watch = move || {
        loop {
            thread::sleep(LOOK);
            if liveness.why_over().is_none() {
                continue;
            }
            thread::sleep(TO_FAIL / 2);
            // Whoever had ended may have said good-bye before.
            if let Some(why) = liveness.why_over() {
                return note(me, &why.into_fault(me), &known);
            }
        }
    };
    let started = thread::Builder::new().spawn(watch);
    started.map(drop).map_err(|error| NoThread::of("the thread that watches other ranks", &error))
}

/// Writes the error file of this rank, if the run still has its folder, and then what it did last.
fn note(me: Rank, fault: &Fault, known: &Known) {
    let Some(folder) = known.folder.get() else { return };
    let explain = known.explain.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let is_lost = explain.as_ref().is_some_and(|explain| !explain.is_in_place());
    if is_lost || known.noted.swap(true, Ordering::Relaxed) {
        return;
    }
    let explain = || explain.map_or(Ok(()), |explain| explain.write(me));
    for also in [write_error(folder, me, fault), explain()].into_iter().filter_map(Result::err) {
        tell(format_args!("{also:#}")); // the error that counts is the first
    }
}

/// Whether an error is a failure, and not a stop on request.
pub(super) fn is_failed(error: &anyhow::Error, me: Rank) -> bool {
    fault_of(error, me).class != Class::Requeue
}

/// Starts MPI by `open`, which is told for how long ranks may wait for each other, and whom to warn.
pub(super) fn start<T>(
    patience: Duration,
    open: impl FnOnce(Duration, fn(&str)) -> Result<T, CommError>,
) -> Result<T, Fault> {
    let me = || Launch::found().map_or(ROOT, |launch| Rank(launch.rank));
    let never = move |_| {
        let why = "MPI does not start: a rank is stopped, or was never started (--start-timeout)";
        tell(format_args!("error: {}: {why}", me()));
        std::process::exit(Class::Timeout.code().into());
    };
    within(patience, None, never, || open(patience, warn)).map_err(|e| e.into_fault(me()))
}

/// Ends MPI, when all have left.
pub(super) fn close(mpi: &mut Mpi, patience: Duration, known: &Arc<Known>) -> Result<(), Fault> {
    let me = mpi.rank();
    let never = stuck(me, "MPI does not end, though all ranks have left: one is stopped", known);
    let closed = within(patience.saturating_mul(2), None, never, || mpi.close(patience));
    closed.map_err(|e| ungathered(mpi, e))
}

/// Gives up when `work` takes longer, or the job is over: MPI itself cannot be told how long to wait where all ranks
/// meet.
pub(super) fn within<T>(
    patience: Duration,
    liveness: Option<LivenessMonitor>,
    give_up: impl FnOnce(Option<CommError>) + Send + 'static,
    work: impl FnOnce() -> T,
) -> T {
    let (done, is_done) = mpsc::channel::<()>();
    let watch = move || {
        let began = Instant::now();
        while is_done.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            let why_over = liveness.as_ref().and_then(LivenessMonitor::why_over);
            if why_over.is_some() || began.elapsed() >= patience {
                return give_up(why_over);
            }
        }
    };
    // Without a thread nobody gives up.
    let _ = thread::Builder::new().spawn(watch);
    let result = work();
    drop(done);
    result
}

/// What ends this process once some meeting of all ranks was waited for too long, or in vain.
pub(super) fn stuck(
    me: Rank,
    why: &'static str,
    known: &Arc<Known>,
) -> impl FnOnce(Option<CommError>) + Send + use<> {
    let known = Arc::clone(known);
    move |why_over| {
        let fault = match why_over {
            Some(error) => error.into_fault(me),
            None => Fault::new(Class::Timeout, me, why),
        };
        note(me, &fault, &known);
        tell(format_args!("error: {fault}"));
        std::process::exit(fault.class.code().into());
    }
}
