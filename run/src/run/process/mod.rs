//! The life of a rank that is a process, over any transport, from its first meeting with the others
//! to its exit code.
//!
//! Every rank reads the same settings, prepares the same run, and trains its part. Only rank 0
//! prints, owns the folder of the run, and concludes. An error on one rank before the training ends
//! all ranks before any of them writes. A later error becomes the cause on all ranks.

mod callbacks;
mod shutdown;
mod start_up;
mod surviving;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use chimera_core::comm::{Comm, CommError, Control, Endpoint, Host, Process};
use chimera_core::engine::Patience;
use chimera_core::fault::{Fault, panicked};
use chimera_settings::{Config, Survive};

pub use self::callbacks::{Callbacks, Console, Leader, RunOf};
use self::shutdown::{
    Known, ROOT, close, end_if_over, end_now, fail, is_failed, note_if_over, start,
};
use self::start_up::{ReadyRun, start_up};
pub use self::surviving::{REJOIN, run_surviving_rank};
use crate::run::{Run, Seat, Subject, conclude as conclude_run};

/// Timeout for all ranks to leave, when there are no settings.
const TO_LEAVE: Duration = Duration::from_secs(60);

/// The environment of a rank, apart from its messages.
struct Life<'l, P> {
    program: &'l P,
    control: Arc<dyn Control>,
    /// Set by a request to stop.
    stop: &'l AtomicBool,
    known: &'l Arc<Known>,
}

/// Trains as one rank of a job, from the start of the transport by `open` to the end of the rank.
/// If the run fails, it tells the other ranks, records why, and ends this process with the exit code
/// of the error; so does a rank that can no longer be reached.
pub fn run_rank<P: Callbacks, C: Process>(
    program: &P,
    config: Result<Config>,
    open: impl FnOnce(Duration, fn(&str)) -> Result<C, CommError>,
) -> Result<()> {
    program.reached("start");
    let patience = config.as_ref().map_or(Patience::default(), Config::patience);
    let mut comm = start(patience.first_step, program.console(), open)?;
    program.reached("met");
    let known = Known::new(program.console());
    let (me, control, watched) = (comm.rank(), comm.control(), Arc::clone(&known));
    let stop = program.on_stop(move || {
        end_if_over(me, &*control, &watched);
        me == ROOT
    })?;
    note_if_over(me, comm.control(), &known)?;
    let life = Life { program, control: comm.control(), stop, known: &known };
    let work = AssertUnwindSafe(|| train(&life, config, &mut comm));
    let outcome = catch_unwind(work).unwrap_or_else(|panic| Err(panicked(me, &*panic).into()));
    program.reached("leave");
    let outcome = match outcome {
        Err(error) if is_failed(&error, me) => Err(error),
        // A peer may also be lost while leaving.
        sound => close(&mut comm, patience.later, &known).map_err(anyhow::Error::from).and(sound),
    };
    program.reached("left");
    match outcome {
        Err(error) if is_failed(&error, me) => fail(comm, &error, &known),
        Err(error) if me != ROOT => program.stopped(error),
        outcome => outcome,
    }
}

/// Lets `work` use the transport that `open` starts, and leaves together with the other ranks.
pub fn with_process<C: Process, T>(
    console: Console,
    open: impl FnOnce(Duration, fn(&str)) -> Result<C, CommError>,
    work: impl FnOnce(&mut C) -> Result<T, Fault>,
) -> Result<T> {
    let mut comm = start(Patience::default().first_step, console, open)?;
    ensure!(comm.n_ranks() > 1, "one rank has nobody to reach: start several with mpirun or srun");
    let worked = work(&mut comm)?;
    close(&mut comm, TO_LEAVE, &Known::new(console))?;
    Ok(worked)
}

/// Trains from the first meeting to the conclusion.
fn train<P: Callbacks>(
    life: &Life<'_, P>,
    config: Result<Config>,
    comm: &mut dyn Comm<Host>,
) -> Result<()> {
    let Life { program, known, stop, .. } = life;
    let mut wrapped = program.wrap(comm);
    let comm = &mut &mut *wrapped;
    let watching = Arc::clone(&life.control);
    let why_over = move || watching.why_over();
    let seat = Seat::launched(comm);
    let Some(ReadyRun { run, root }) = start_up(life, config, *comm, seat, None)? else {
        return Ok(());
    };
    let Some((mut folder, outputs)) = root else {
        run.train_as(comm, stop, why_over, |_| Ok(()))?;
        return conclude(comm, &run, known, None::<fn() -> Result<()>>);
    };
    let path = folder.path().to_path_buf();
    let ended = program.lead(&run, &mut folder, &outputs).and_then(|mut leader| {
        let trained = leader.train(|observe| run.train_as(comm, stop, why_over, observe));
        leader.end();
        let trained = trained?.context("rank 0 got nothing")?;
        conclude(comm, &run, known, Some(|| leader.conclude(trained)))
    });
    program.close(&run, &path, &ended);
    ended
}

/// Lets the root conclude, and returns its outcome on all ranks.
fn conclude<S: Subject>(
    comm: &mut impl Endpoint,
    run: &Run<S>,
    known: &Known,
    work: Option<impl FnOnce() -> Result<()> + Send>,
) -> Result<()> {
    let survives = run.config().devices.survive != Survive::Off;
    let patience = run.config().patience().later;
    conclude_run(comm, patience, work, |comm, fault| {
        if survives && fault.is_death() { fault } else { end_now(comm, &fault, known) }
    })
}
