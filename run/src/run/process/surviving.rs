//! Ranks whose run survives deaths. After each death they meet again, with or without a replacement
//! process, and continue. The first rank that is present takes over the duties of rank 0 until a
//! lower rank is back.
//!
//! A meeting begins with a report of each rank's progress. If no rank has begun, all start up
//! together. A rank that finds that others have begun joins them, and needs nothing else from them.
//! All ranks then repeat the steps and the conclusion, each from where it is.

mod begin;
mod lead;
mod met;

use std::cell::Cell;
use std::fs::remove_file;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use chimera_core::comm::{CommError, Endpoint, Meeting, Process, ProcessRendezvous};
use chimera_core::engine::StepReport;
use chimera_core::fault::{Class, Fault, panicked};
use chimera_core::ids::Rank;
use chimera_settings::Config;

pub use self::lead::REJOIN;
use self::lead::meet_again;
use self::met::{Met, goes_on};
use super::shutdown::{Known, ROOT, announce, is_failed, start};
use super::start_up::ReadyRun;
use super::{Callbacks, Leader, RunOf, conclude};
use crate::run::launch::Launch;
use crate::run::{Beginning, Survivor, fault_of, together};

/// Time for all ranks to record why a run fails.
const TO_FAIL: Duration = Duration::from_secs(2);

/// Time for the ranks of its host to kill a process that was evicted.
const TO_BE_ENDED: Duration = Duration::from_secs(10);

/// The state of one rank in a run, from one meeting to the next.
struct Surviving<'s, P> {
    program: &'s P,
    config: &'s Config,
    stop: &'s AtomicBool,
    known: &'s Arc<Known>,
    /// Set if this rank was the first at the last meeting.
    leads: &'s AtomicBool,
    /// The beginning of the run, once this rank has begun.
    beginning: Option<Beginning>,
    survivor: Survivor,
    /// The outcome of the conclusion on the leading rank, once there is one.
    concluded: Option<Result<()>>,
    /// The furthest step of any rank at the last meeting.
    furthest: Option<u64>,
    /// Whether the missing ranks are to be replaced by new processes.
    rejoins: bool,
    n_in_vain: u32,
}

/// The end of an attempt that was not caused by the death of another rank.
enum Ended<T, C> {
    Done(T, Met<C>),
    /// The others have finished without this rank.
    Over,
    /// A lower rank that led before is back, and all have met.
    Led(Meeting<C>),
}

/// Like [`run_rank`](super::run_rank), but as a rank that meets the others again after deaths, in
/// the meetings that `open` starts; it returns none in a process that is not needed. After a panic
/// this process aborts, so that the others replace it.
pub fn run_surviving_rank<P: Callbacks, M: ProcessRendezvous>(
    program: &P,
    config: &Config,
    open: impl FnOnce(Duration, fn(&str)) -> Result<Option<M>, CommError>,
) -> Result<()> {
    program.reached("start");
    let tell = program.console().tell;
    let me = Cell::new(Launch::found().map_or(ROOT, |launch| Rank(launch.rank)));
    die_with_other_threads();
    let ended = catch_unwind(AssertUnwindSafe(|| as_rank(program, config, open, &me)));
    ended.unwrap_or_else(|panic| {
        tell(format_args!("error: {}", panicked(me.get(), &*panic)));
        std::process::abort()
    })
}

/// Makes a panic of any other thread, such as the writer of checkpoints, end the process. Otherwise
/// this thread would continue without the work of the other one.
fn die_with_other_threads() {
    let (main, tell) = (std::thread::current().id(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        if std::thread::current().id() != main {
            std::process::abort();
        }
    }));
}

fn as_rank<P: Callbacks, M: ProcessRendezvous>(
    program: &P,
    config: &Config,
    open: impl FnOnce(Duration, fn(&str)) -> Result<Option<M>, CommError>,
    known_as: &Cell<Rank>,
) -> Result<()> {
    let patience = config.patience().first_step;
    let Some(mut meetings) = start(patience, program.console(), open)? else { return Ok(()) };
    let me = meetings.rank();
    known_as.set(me);
    program.reached("met");
    let known = Known::new(program.console());
    let leads = Arc::new(AtomicBool::new(me == ROOT));
    let tells = Arc::clone(&leads);
    let stop = program.on_stop(move || tells.load(Ordering::Relaxed))?;
    let mut rank = Surviving {
        program,
        config,
        stop,
        known: &known,
        leads: &leads,
        beginning: None,
        survivor: Survivor::default(),
        concluded: None,
        furthest: None,
        rejoins: false,
        n_in_vain: 0,
    };
    let outcome = rank.train(&mut meetings);
    program.reached("leave");
    match outcome {
        Err(error) if is_failed(&error, me) => {
            std::thread::sleep(TO_FAIL);
            // After an abort by MPI, the launcher of Open MPI 5 would wait for ever.
            (known.console.exit)(fault_of(&error, me).class.code().into())
        }
        outcome => {
            meetings.leave().map_err(|e| e.into_fault(me))?;
            program.reached("left");
            match outcome {
                Err(error) if !leads.load(Ordering::Relaxed) => program.stopped(error),
                outcome => outcome,
            }
        }
    }
}

impl<P: Callbacks> Surviving<'_, P> {
    /// Trains from the first meeting to the end of the run.
    fn train<M: ProcessRendezvous>(&mut self, meetings: &mut M) -> Result<()> {
        let begun = self.until(meetings, None, false, Self::begin)?;
        let Ended::Done(Some(begun), met) = begun else { return Ok(()) };
        self.beginning = Some(begun.run.beginning());
        let ReadyRun { run, mut root } = begun;
        let mut met = Some(met);
        loop {
            let (taken, at) = match (root.take(), met.take()) {
                (Some(root), Some(met)) => (root, met),
                (_, met) => {
                    // Follow until the run is over or this rank leads.
                    let follow = |rank: &mut Self, met: &mut Met<M::End>| match met.comm.rank() {
                        ROOT => rank.take_over(&run).map(Some),
                        _ => rank.go_on(&run, None, met).map(|()| None),
                    };
                    match self.until(meetings, met, false, follow)? {
                        Ended::Done(Some(taken), last) => (taken, last),
                        _ => return Ok(()),
                    }
                }
            };
            // This leader drops its outputs before the new leader learns that it leads.
            match self.lead(meetings, &run, taken, at)? {
                Some(meeting) => met = self.hear(meeting)?,
                None => return Ok(()),
            }
        }
    }

    /// Repeats `attempt` at every meeting until no death of a rank interrupts it. If `leads`, ends
    /// as soon as this rank no longer leads.
    fn until<T, M: ProcessRendezvous>(
        &mut self,
        meetings: &mut M,
        mut met: Option<Met<M::End>>,
        leads: bool,
        mut attempt: impl FnMut(&mut Self, &mut Met<M::End>) -> Result<T>,
    ) -> Result<Ended<T, M::End>> {
        loop {
            let next = match met.take() {
                Some(met) => Some(met),
                None => match self.meet(meetings)? {
                    None => return Ok(Ended::Over),
                    Some(meeting) if leads && meeting.comm.rank() != ROOT => {
                        return Ok(Ended::Led(meeting));
                    }
                    Some(meeting) => self.hear(meeting)?,
                },
            };
            let Some(mut met) = next else { continue };
            match attempt(self, &mut met) {
                Ok(done) => return Ok(Ended::Done(done, met)),
                Err(error) if is_death(&error) => {
                    let fault = fault_of(&error, ROOT);
                    if fault.class == Class::Evicted {
                        (self.known.console.warn)(&fault.to_string());
                    }
                    met.comm.abort(&fault);
                }
                Err(error) => return Err(self.failed(met.comm, error)),
            }
        }
    }

    /// Trains and concludes, starting from the progress of this rank.
    fn go_on<C: Process>(
        &mut self,
        run: &RunOf<P>,
        mut leader: Option<&mut P::Leader<'_>>,
        met: &mut Met<C>,
    ) -> Result<()> {
        let Met { comm, present, .. } = met;
        let before = self.survivor.present().to_vec();
        let fewer = self.survivor.meet(run, present, comm.rank())?;
        if let Some(fewer) = &fewer
            && leader.is_some()
            && before != fewer.present
        {
            (self.known.console.warn)(&goes_on(run, fewer));
        }
        comm.control().expect_tensors(run.longest_tensor());
        let me = comm.rank();
        let mut wrapped = self.program.wrap(comm);
        let comm = &mut &mut *wrapped;
        let (stop, survivor, why_over) = (self.stop, &mut self.survivor, || None);
        let asked = self.known.folder.get().filter(|_| fewer.is_some()).map(|it| it.join(REJOIN));
        let rejoins = &mut self.rejoins;
        let trained = match &mut leader {
            Some(leader) => leader.train(|observe| {
                let observe = |report: &StepReport| {
                    *rejoins = asked.as_ref().is_some_and(|asked| remove_file(asked).is_ok());
                    if *rejoins { Err(meet_again(me).into()) } else { observe(report) }
                };
                run.train_on(comm, survivor, stop, why_over, observe)
            })?,
            None => run.train_on(comm, survivor, stop, why_over, |_| Ok(()))?,
        };
        let leader = leader.filter(|_| self.concluded.is_none());
        let work = leader.zip(trained).map(|(leader, trained)| {
            let concluded = &mut self.concluded;
            move || {
                *concluded = Some(leader.conclude(trained));
                Ok(())
            }
        });
        conclude(comm, run, self.known, work)?;
        let own = match &self.concluded {
            Some(Err(error)) => Err(fault_of(error, me).into()),
            _ => Ok(()),
        };
        match together(comm, own, run.config().patience().later) {
            Err(error) if !is_death(&error) => self.concluded.take().unwrap_or(Err(error)),
            outcome => outcome,
        }
    }

    /// Tells all other ranks why the run ends. A rank that was evicted waits to be killed by them:
    /// Open MPI 5 only regards a process as dead if it ends by a signal, and the others would wait
    /// for one that exits.
    fn failed<C: Process>(&self, mut comm: C, error: anyhow::Error) -> anyhow::Error {
        let me = comm.rank();
        if fault_of(&error, me).class == Class::Evicted {
            (self.known.console.tell)(format_args!("error: {error:#}"));
            std::thread::sleep(TO_BE_ENDED);
            std::process::abort();
        }
        if is_failed(&error, me) {
            announce(&mut comm, &fault_of(&error, me), format_args!("{error:#}"), self.known);
        }
        error
    }

    /// Prints why the run ends, if the ranks do not meet again.
    fn told(&self, me: Rank, error: &anyhow::Error) {
        if self.leads.load(Ordering::Relaxed)
            || matches!(fault_of(error, me).class, Class::PeerLost)
        {
            (self.known.console.tell)(format_args!("error: {error:#}"));
        }
    }
}

/// Returns true if a rank has died and the others can continue.
fn is_death(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Fault>().is_some_and(Fault::is_death)
}
