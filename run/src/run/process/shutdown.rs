//! Shutdown of a rank after a failure: with the first cause, its error file, and its exit code.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use chimera_core::comm::{CommError, Control, Endpoint, Process};
use chimera_core::engine::ungathered;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_device::NoThread;

use super::Console;
use crate::observe::Explain;
use crate::run::launch::Launch;
use crate::run::{fault_of, write_error};

/// The rank that prints.
pub(super) const ROOT: Rank = Rank(0);

/// Time for all ranks to record the reason of a failure.
const TO_FAIL: Duration = Duration::from_secs(2);
/// Interval between checks while all ranks meet.
const LOOK: Duration = Duration::from_millis(100);
/// Time from the launcher's signal after a death to the arrival of the cause: a launcher may kill
/// soon.
const TO_HEAR: Duration = Duration::from_millis(20);
/// Time for all ranks to notice a death by themselves and to record what they did.
const TO_NOTICE: Duration = Duration::from_millis(280);

/// Facts about this rank for its shutdown, as far as they are known.
pub(super) struct Known {
    pub(super) console: Console,
    /// The folder of the run.
    pub(super) folder: OnceLock<PathBuf>,
    pub(super) explain: Mutex<Option<Arc<Explain>>>,
    /// Set by the thread that writes the error file: the first cause counts.
    noted: AtomicBool,
    /// Set by the thread that prints the error.
    told: AtomicBool,
}

impl Known {
    pub(super) fn new(console: Console) -> Arc<Known> {
        Arc::new(Known {
            console,
            folder: OnceLock::new(),
            explain: Mutex::default(),
            noted: AtomicBool::new(false),
            told: AtomicBool::new(false),
        })
    }

    /// Prints the reason for the end of the run, once.
    fn tell(&self, error: impl Display) {
        if !self.told.swap(true, Ordering::Relaxed) {
            (self.console.tell)(format_args!("error: {error}"));
        }
    }
}

/// Tells all other ranks the reason, records it, and ends the process when all have had time to do
/// the same.
pub(super) fn fail(mut comm: impl Process, error: &anyhow::Error, known: &Known) -> ! {
    let fault = fault_of(error, comm.rank());
    announce(&mut comm, &fault, format_args!("{error:#}"), known);
    let code = fault.class.code();
    let exit = known.console.exit;
    let never_ends = move |_| exit(code.into());
    if let Err(CommError::Timeout { .. }) =
        within(TO_FAIL * 2, None, never_ends, || comm.close(TO_FAIL))
    {
        comm.end_job(code); // some rank hangs
    }
    exit(code.into())
}

/// Ends the process while some of its work continues; the other ranks are notified.
pub(super) fn end_now(comm: &mut impl Endpoint, fault: &Fault, known: &Known) -> ! {
    announce(comm, fault, fault, known);
    (known.console.exit)(fault.class.code().into())
}

/// Reports a fault to the other ranks, to the folder of the run, and, from one rank only, to the
/// user.
pub(super) fn announce(
    comm: &mut impl Endpoint,
    fault: &Fault,
    error: impl Display,
    known: &Known,
) {
    let me = comm.rank();
    comm.abort(fault);
    note(me, fault, known);
    // If the root is gone, the rank that noticed it reports instead.
    let is_lead_gone = matches!(fault.class, Class::PeerLost | Class::Timeout);
    if me == ROOT || is_lead_gone && fault.peer == Some(ROOT) && fault.rank == me {
        known.tell(error);
    }
    if fault.class == Class::PeerLost {
        thread::sleep(TO_NOTICE); // soon after the first has ended, a launcher kills the others
    }
}

/// Ends this rank if the job is over. After the end of a rank the launcher sends a signal and soon
/// kills the others, even those that compute and do not know the reason yet.
pub(super) fn end_if_over(me: Rank, control: &dyn Control, known: &Known) {
    if control.why_over().is_none() {
        return;
    }
    thread::sleep(TO_HEAR);
    if let Some(why) = control.why_over() {
        let fault = why.into_fault(me);
        note(me, &fault, known);
        if me == ROOT {
            known.tell(&fault);
        }
        thread::sleep(TO_NOTICE);
        (known.console.exit)(fault.class.code().into());
    }
}

/// Starts a thread that records why the job is over if this rank does not do so in time. The rank
/// may be computing, or waiting for its device to stop, and the others do not wait for that. The
/// thread ends with the rank.
pub(super) fn note_if_over(
    me: Rank,
    control: Arc<dyn Control>,
    known: &Arc<Known>,
) -> Result<(), NoThread> {
    let known = Arc::downgrade(known);
    let watch = move || {
        while let Some(known) = known.upgrade() {
            thread::sleep(LOOK);
            if control.why_over().is_none() {
                continue;
            }
            thread::sleep(TO_FAIL / 2);
            // A rank that had ended may have left properly before.
            if let Some(why) = control.why_over() {
                return note(me, &why.into_fault(me), &known);
            }
        }
    };
    let started = thread::Builder::new().spawn(watch);
    started.map(drop).map_err(|error| NoThread::of("the thread that watches other ranks", &error))
}

/// Writes the error file of this rank, if the run still has its folder, and then the flight
/// recorder.
fn note(me: Rank, fault: &Fault, known: &Known) {
    let Some(folder) = known.folder.get() else { return };
    let explain = known.explain.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let is_lost = explain.as_ref().is_some_and(|explain| !explain.is_in_place());
    if is_lost || known.noted.swap(true, Ordering::Relaxed) {
        return;
    }
    let explain = || explain.map_or(Ok(()), |explain| explain.write(me));
    for also in [write_error(folder, me, fault), explain()].into_iter().filter_map(Result::err) {
        (known.console.tell)(format_args!("{also:#}")); // the first error is the one to report
    }
}

/// Returns true if an error is a failure, not a stop on request.
pub(super) fn is_failed(error: &anyhow::Error, me: Rank) -> bool {
    fault_of(error, me).class != Class::Requeue
}

/// Starts the transport with `open`, passing the longest time that ranks may wait for each other,
/// and the function for warnings.
pub(super) fn start<T>(
    patience: Duration,
    console: Console,
    open: impl FnOnce(Duration, fn(&str)) -> Result<T, CommError>,
) -> Result<T, Fault> {
    let me = || Launch::found().map_or(ROOT, |launch| Rank(launch.rank));
    let never = move |_| {
        let why = "does not start: a rank is stopped, or was never started (--start-timeout)";
        (console.tell)(format_args!("error: {}: {} {why}", me(), console.transport));
        (console.exit)(Class::Timeout.code().into());
    };
    within(patience, None, never, || open(patience, console.warn)).map_err(|e| e.into_fault(me()))
}

/// Leaves the job after all ranks have done their work.
pub(super) fn close(
    comm: &mut impl Process,
    patience: Duration,
    known: &Arc<Known>,
) -> Result<(), Fault> {
    let transport = known.console.transport;
    let why = format!("{transport} does not end, though all ranks have left: one is stopped");
    let never = stuck(comm.rank(), &why, known);
    let closed = within(patience.saturating_mul(2), None, never, || comm.close(patience));
    closed.map_err(|e| ungathered(comm, e))
}

/// Calls `give_up` if `work` takes too long or the job is over: a transport may have no timeout for
/// operations of all ranks.
pub(super) fn within<T>(
    patience: Duration,
    control: Option<Arc<dyn Control>>,
    give_up: impl FnOnce(Option<CommError>) + Send + 'static,
    work: impl FnOnce() -> T,
) -> T {
    let (done, is_done) = mpsc::channel::<()>();
    let watch = move || {
        let began = Instant::now();
        while is_done.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            let why_over = control.as_ref().and_then(|control| control.why_over());
            if why_over.is_some() || began.elapsed() >= patience {
                return give_up(why_over);
            }
        }
    };
    // If there is no thread, nothing gives up.
    let _ = thread::Builder::new().spawn(watch);
    let result = work();
    drop(done);
    result
}

/// Returns a function that ends this process after a meeting of all ranks has timed out or become
/// impossible.
pub(super) fn stuck(
    me: Rank,
    why: &str,
    known: &Arc<Known>,
) -> impl FnOnce(Option<CommError>) + Send + use<> {
    let (known, why) = (Arc::clone(known), why.to_owned());
    move |why_over| {
        let fault = match why_over {
            Some(error) => error.into_fault(me),
            None => Fault::new(Class::Timeout, me, why),
        };
        note(me, &fault, &known);
        (known.console.tell)(format_args!("error: {fault}"));
        (known.console.exit)(fault.class.code().into());
    }
}
