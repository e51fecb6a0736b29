//! Ranks whose run survives deaths. After each death they meet again, with or without a replacement
//! process, and continue. The first rank that is present takes over the duties of rank 0 until a
//! lower rank is back.
//!
//! A meeting begins with a report of each rank's progress. If no rank has begun, all start up
//! together. A rank that finds that others have begun joins them, and needs nothing else from them.
//! All ranks then repeat the steps and the conclusion, each from where it is.

mod lead;
mod met;

use std::cell::Cell;
use std::fs::remove_file;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use chimera_comm_mpi::{Mpi, MpiRendezvous};
use chimera_core::comm::{Endpoint, Meeting};
use chimera_core::engine::StepReport;
use chimera_core::fault::{Class, Fault, panicked};
use chimera_core::ids::{Rank, listed};

use self::lead::{REJOIN, Root, meet_again};
use self::met::{Met, goes_on};
#[cfg(all(unix, debug_assertions))]
use super::fault_injection;
use super::shutdown::{Known, ROOT, announce, is_failed, start};
use super::start_up::{ReadyRun, saving, start_up};
use super::{Job, conclude, pass};
use crate::cli::commands::train::telling::Telling;
use crate::cli::commands::train::{Stop, Train};
use crate::cli::parts::terminal::console::{tell, warn};
use crate::observe::Prometheus;
use crate::run::launch::Launch;
use crate::run::{Beginning, Folder, Run, Survivor, fault_of, together};
use crate::settings::{Config, Evict, Survive};

/// Time for all ranks to record why a run fails.
const TO_FAIL: Duration = Duration::from_secs(2);

/// Time for the ranks of its host to kill a process that was evicted.
const TO_BE_ENDED: Duration = Duration::from_secs(10);

/// The state of one rank in a run, from one meeting to the next.
struct Surviving<'s> {
    train: &'s Train,
    config: &'s Config,
    why: &'s str,
    stop: &'s Stop,
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
enum Ended<T> {
    Done(T, Met),
    /// The others have finished without this rank.
    Over,
    /// A lower rank that led before is back, and all have met.
    Led(Meeting<Mpi>),
}

/// Trains as the rank of this process, or as the rank that it replaces, until the end of the rank.
/// After a panic it aborts, so that the others replace it.
pub(super) fn run(train: &Train, config: &Config, why: &str) -> Result<()> {
    let me = Cell::new(Launch::found().map_or(ROOT, |launch| Rank(launch.rank)));
    die_with_other_threads();
    let ended = catch_unwind(AssertUnwindSafe(|| as_rank(train, config, why, &me)));
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

fn as_rank(train: &Train, config: &Config, why: &str, known_as: &Cell<Rank>) -> Result<()> {
    let patience = config.patience().first_step;
    let Some(mut meetings) = start(patience, MpiRendezvous::start)? else { return Ok(()) };
    if config.devices.survive == Survive::Narrow {
        meetings = meetings.without_replacements();
    }
    if config.devices.evict == Evict::Stalled {
        meetings = meetings.evicting_stalled();
    }
    let me = meetings.rank();
    known_as.set(me);
    #[cfg(all(unix, debug_assertions))]
    fault_injection::this_is(me, meetings.is_replacement());
    pass("met");
    let known = Arc::default();
    let leads = Arc::new(AtomicBool::new(me == ROOT));
    let tells = Arc::clone(&leads);
    let stop = Stop::on_signal(move || tells.load(Ordering::Relaxed))?;
    let mut rank = Surviving {
        train,
        config,
        why,
        stop: &stop,
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
    pass("leave");
    match outcome {
        Err(error) if is_failed(&error, me) => {
            std::thread::sleep(TO_FAIL);
            // After an abort by MPI, the launcher of Open MPI 5 would wait for ever.
            std::process::exit(fault_of(&error, me).class.code().into())
        }
        outcome => {
            meetings.leave().map_err(|e| e.into_fault(me))?;
            pass("left");
            match outcome {
                Err(error) if !leads.load(Ordering::Relaxed) => {
                    std::process::exit(fault_of(&error, me).class.code().into())
                }
                outcome => outcome,
            }
        }
    }
}

impl Surviving<'_> {
    /// Trains from the first meeting to the end of the run.
    fn train(&mut self, meetings: &mut MpiRendezvous) -> Result<()> {
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
                    let follow = |rank: &mut Self, met: &mut Met| match met.comm.rank() {
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

    /// Acts as rank 0 until the run is over (`None`), or until a lower rank leads, after a meeting
    /// of all.
    fn lead(
        &mut self,
        meetings: &mut MpiRendezvous,
        run: &Run,
        (mut folder, prometheus): (Folder, Option<Prometheus>),
        met: Met,
    ) -> Result<Option<Meeting<Mpi>>> {
        let (path, say) = (folder.path().to_path_buf(), self.train.say());
        let telling = Telling::begin(run, &mut folder, prometheus.as_ref(), &say);
        let ended = match telling {
            Ok(mut telling) => {
                let mut root = Root { telling: &mut telling, say: &say };
                let went_on =
                    |rank: &mut Self, met: &mut Met| rank.go_on(run, Some(&mut root), met);
                match self.until(meetings, Some(met), true, went_on) {
                    Ok(Ended::Led(meeting)) => {
                        telling.end();
                        return Ok(Some(meeting));
                    }
                    ended => ended.map(drop),
                }
            }
            Err(error) => Err(self.failed(met.comm, error)),
        };
        self.train.close(run, &path, &say, &ended);
        ended.map(|()| None)
    }

    /// Repeats `attempt` at every meeting until no death of a rank interrupts it. If `leads`, ends
    /// as soon as this rank no longer leads.
    fn until<T>(
        &mut self,
        meetings: &mut MpiRendezvous,
        mut met: Option<Met>,
        leads: bool,
        mut attempt: impl FnMut(&mut Self, &mut Met) -> Result<T>,
    ) -> Result<Ended<T>> {
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
                        warn(&fault.to_string());
                    }
                    met.comm.abort(&fault);
                }
                Err(error) => return Err(self.failed(met.comm, error)),
            }
        }
    }

    /// Prepares a run for training: together with all other ranks, or alone if they have begun.
    fn begin(&mut self, met: &mut Met) -> Result<Option<ReadyRun>> {
        let seat = met.seat();
        let Met { comm, all, present } = met;
        let job = self.job(comm);
        let folder = all.iter().find_map(|standing| standing.folder.clone());
        let Some(beginning) = all.iter().find_map(|standing| standing.beginning.clone()) else {
            if let Some(why) = self.too_few(present) {
                return Err(Fault::new(Class::PeerLost, comm.rank(), why).into());
            }
            if let Some(why) = self.cannot_evict(&comm.alone()) {
                return Err(Fault::new(Class::Usage, comm.rank(), why).into());
            }
            #[cfg(all(unix, debug_assertions))]
            let comm = &mut fault_injection::Struck::new(comm);
            return start_up(self.train, Ok(self.config.clone()), comm, &job, seat, folder);
        };
        let folder = folder.context("a run without a folder has begun")?;
        let _ = self.known.folder.set(folder.clone());
        let mut run = Run::prepare_again(self.config.clone(), &beginning, seat)?;
        run.join(&beginning, self.survivor.joins)?;
        saving(&mut run, &job, &folder);
        let root = (seat.rank == ROOT).then(|| self.take_over(&run)).transpose()?;
        Ok(Some(ReadyRun { run, root }))
    }

    /// Returns the reason why a run cannot begin with these ranks, if there is one.
    fn too_few(&self, present: &[Rank]) -> Option<String> {
        let n_ranks = self.config.schedule.width.saturating_mul(self.config.schedule.depth);
        let missing = (0..n_ranks as u32).map(Rank).find(|rank| !present.contains(rank));
        // If too few ranks were started, the start-up reports that.
        let n_started = Launch::found().map_or(n_ranks, |launch| launch.n_ranks as usize);
        let has_died = self.config.devices.survive == Survive::Narrow && present.len() < n_started;
        let missing = missing.filter(|_| has_died)?;
        Some(format!(
            "{missing} died before the run began, which needs all {n_ranks} ranks: start again"
        ))
    }

    /// Returns the reason why stalled ranks cannot be killed, if there is one.
    fn cannot_evict(&self, alone: &[Rank]) -> Option<String> {
        let is_evicting = self.config.devices.evict == Evict::Stalled && !alone.is_empty();
        is_evicting.then(|| {
            format!(
                "evict: no other rank runs on the host of {}, and only one that does could end it: start at least two ranks on \
                 each host, or leave evict out",
                listed(alone)
            )
        })
    }

    /// Trains and concludes, starting from the progress of this rank.
    fn go_on(
        &mut self,
        run: &Run,
        mut root: Option<&mut Root<'_, '_>>,
        met: &mut Met,
    ) -> Result<()> {
        let Met { comm, present, .. } = met;
        let before = self.survivor.present().to_vec();
        let fewer = self.survivor.meet(run, present, comm.rank())?;
        if let Some(fewer) = &fewer
            && root.is_some()
            && before != fewer.present
        {
            warn(&goes_on(run, fewer));
        }
        comm.limit().expect_tensors(run.longest_tensor());
        let me = comm.rank();
        #[cfg(all(unix, debug_assertions))]
        let comm = &mut fault_injection::Struck::new(comm);
        let (stop, survivor, why_over) = (self.stop.flag(), &mut self.survivor, || None);
        let asked = self.known.folder.get().filter(|_| fewer.is_some()).map(|it| it.join(REJOIN));
        let rejoins = &mut self.rejoins;
        let trained = match &mut root {
            Some(root) => root.telling.train(|observe| {
                let observe = |report: &StepReport| {
                    *rejoins = asked.as_ref().is_some_and(|asked| remove_file(asked).is_ok());
                    if *rejoins { Err(meet_again(me).into()) } else { observe(report) }
                };
                run.train_on(comm, survivor, stop, why_over, observe)
            })?,
            None => run.train_on(comm, survivor, stop, why_over, |_| Ok(()))?,
        };
        let train = self.train;
        let work = root.filter(|_| self.concluded.is_none()).zip(trained).map(|(root, trained)| {
            let concluded = &mut self.concluded;
            move || {
                *concluded = Some(root.conclude(train, run, trained));
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
    fn failed(&self, mut comm: Mpi, error: anyhow::Error) -> anyhow::Error {
        let me = comm.rank();
        if fault_of(&error, me).class == Class::Evicted {
            tell(format_args!("error: {error:#}"));
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
            tell(format_args!("error: {error:#}"));
        }
    }

    fn job(&self, comm: &Mpi) -> Job<'_> {
        let (liveness, sums, limit) = (comm.liveness(), comm.sums(), comm.limit());
        Job { why: self.why, liveness, sums, limit, stop: self.stop, known: self.known }
    }
}

/// Returns true if a rank has died and the others can continue.
fn is_death(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Fault>().is_some_and(Fault::is_death)
}
