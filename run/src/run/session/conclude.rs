//! The end of a training of processes: the rank that leads concludes, and the others wait for it.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use chimera_core::comm::Endpoint;
use chimera_core::fault::{Fault, panicked};

use super::processes::together;
use crate::run::ranks::gather::share;

/// Interval at which the rank that leads tells the others that it is not done yet.
const TELL: Duration = Duration::from_secs(1);

/// Runs `work` on the rank that has it, for as long as it takes, and returns its result on all ranks.
/// Meanwhile that rank sends a sign of life every second. If a rank is lost before the work is done,
/// `lost` returns the fault to fail with, or ends the process; if it returns, the work is finished first.
pub fn conclude<C: Endpoint>(
    comm: &mut C,
    patience: Duration,
    work: Option<impl FnOnce() -> Result<()> + Send>,
    lost: impl Fn(&mut C, Fault) -> Fault,
) -> Result<()> {
    let work = work.map(|work| Mutex::new(Some(work)));
    thread::scope(|scope| {
        // If no thread can be started, the work is done here, and the others wait until their timeout.
        let started = work.as_ref().map(|work| {
            let thread = thread::Builder::new().spawn_scoped(scope, || run_once(work));
            thread.map_err(|_| run_once(work))
        });
        loop {
            let told = Instant::now();
            let is_done = || match &started {
                Some(Ok(thread)) => thread.is_finished(),
                _ => true,
            };
            while !is_done() && told.elapsed() < TELL {
                thread::sleep(Duration::from_millis(2));
            }
            match share(comm, &is_done(), patience) {
                Ok(all) if all.iter().all(|is_done| *is_done) => break,
                Ok(_) => {}
                Err(fault) if is_done() => return Err(fault.into()),
                Err(fault) => return Err(lost(comm, fault).into()),
            }
        }
        let me = comm.rank();
        let concluded = match started {
            Some(Ok(thread)) => {
                thread.join().unwrap_or_else(|panic| Err(panicked(me, &*panic).into()))
            }
            Some(Err(concluded)) => concluded,
            None => Ok(()),
        };
        together(comm, concluded, patience)
    })
}

/// Does `work` unless it was done.
fn run_once(work: &Mutex<Option<impl FnOnce() -> Result<()>>>) -> Result<()> {
    let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
    work.map_or(Ok(()), |work| work())
}
