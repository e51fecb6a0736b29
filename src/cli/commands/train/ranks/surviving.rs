//! Ranks whose run survives deaths: after each they meet again, with a process in the place of the dead one, and go on.
//!
//! A meeting begins with where every rank stands. If none has begun, all start up together; who finds that others have
//! begun joins them, asking them nothing but that. The steps, and what comes after the last one, are gone through again by
//! all, each from where it stands.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use chimera_comm_mpi::{Mpi, MpiRendezvous};
use chimera_core::comm::{Endpoint, Meeting, Rendezvous};
use chimera_core::fault::{Class, Fault, panicked};
use chimera_core::ids::Rank;
use serde::{Deserialize, Serialize};

#[cfg(all(unix, debug_assertions))]
use super::fault_injection;
use super::shutdown::{Known, ROOT, announce, fault_of, is_failed, start};
use super::start_up::{ReadyRun, saving, start_up};
use super::{Job, conclude, pass, together};
use crate::cli::commands::train::telling::Telling;
use crate::cli::commands::train::{Stop, Train, listen};
use crate::cli::parts::console::{tell, warn};
use crate::cli::parts::progress::Say;
use crate::run::launch::Launch;
use crate::run::{Beginning, Place, Run, Seat, Survivor, Trained, host_name, share};
use crate::settings::Config;

/// Meetings in a row after deaths with no finished step between them, after which more would be in vain.
const MOST_IN_VAIN: u32 = 10;
/// For all to write down why a run fails.
const TO_FAIL: Duration = Duration::from_secs(2);

/// What one rank has of a run, from one meeting to the next.
struct Surviving<'s> {
    train: &'s Train,
    config: &'s Config,
    why: &'s str,
    stop: &'s Stop,
    known: &'s Arc<Known>,
    /// How the run has begun, once this rank has.
    beginning: Option<Beginning>,
    survivor: Survivor,
    /// How rank 0 has concluded, once it has.
    concluded: Option<Result<()>>,
    /// The furthest step of any rank at the last meeting, and meetings since it was another one.
    furthest: Option<u64>,
    n_in_vain: u32,
}

/// Where a rank stands at a meeting.
#[derive(Serialize, Deserialize, Clone)]
struct Standing {
    host: String,
    beginning: Option<Beginning>,
    folder: Option<PathBuf>,
    /// The step that it is to train next, if it has weights for it.
    next: Option<u64>,
    n_in_vain: u32,
}

/// One meeting: this rank's end of the transport, and where all ranks stand.
struct Met {
    comm: Mpi,
    all: Vec<Standing>,
}

/// Trains as the rank that this process is, or takes the place of, and ends it. Where it panics, it ends as by a signal, so
/// that the others replace it.
pub(super) fn run(train: &Train, config: &Config, why: &str) -> Result<()> {
    let me = Cell::new(Launch::found().map_or(ROOT, |launch| Rank(launch.rank)));
    die_with_other_threads();
    let ended = catch_unwind(AssertUnwindSafe(|| as_rank(train, config, why, &me)));
    ended.unwrap_or_else(|panic| {
        tell(format_args!("error: {}", panicked(me.get(), &*panic)));
        std::process::abort()
    })
}

/// Makes a panic of any thread but this one, such as the writer of checkpoints, end the process: this one would go on without
/// what the other was to do.
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
    let me = meetings.rank();
    known_as.set(me);
    #[cfg(all(unix, debug_assertions))]
    fault_injection::this_is(me, meetings.is_replacement());
    pass("met");
    let known = Arc::default();
    let stop = Stop::on_signal(move || me == ROOT)?;
    let mut rank = Surviving {
        train,
        config,
        why,
        stop: &stop,
        known: &known,
        beginning: None,
        survivor: Survivor::default(),
        concluded: None,
        furthest: None,
        n_in_vain: 0,
    };
    let outcome = rank.train(&mut meetings);
    pass("leave");
    match outcome {
        Err(error) if is_failed(&error, me) => {
            std::thread::sleep(TO_FAIL);
            // After an abort by MPI the launcher of Open MPI 5 would wait for ever.
            std::process::exit(fault_of(&error, me).class.code().into())
        }
        outcome => {
            meetings.leave().map_err(|e| e.into_fault(me))?;
            pass("left");
            match outcome {
                Err(error) if me != ROOT => {
                    std::process::exit(fault_of(&error, me).class.code().into())
                }
                outcome => outcome,
            }
        }
    }
}

impl Surviving<'_> {
    /// From the first meeting to the end of the run.
    fn train(&mut self, meetings: &mut MpiRendezvous) -> Result<()> {
        let begun = self.until(meetings, None, Self::begin)?;
        let Some((Some(begun), met)) = begun else { return Ok(()) };
        self.beginning = Some(begun.run.beginning());
        let ReadyRun { run, root } = begun;
        let Some((mut folder, prometheus)) = root else {
            let went_on = |rank: &mut Self, met: &mut Met| rank.go_on(&run, None, met);
            return self.until(meetings, Some(met), went_on).map(drop);
        };
        let (path, say) = (folder.path().to_path_buf(), Say { to_stderr: self.train.json });
        let telling = Telling::begin(&run, &mut folder, prometheus.as_ref(), &say);
        let ended = match telling {
            Ok(mut telling) => {
                let mut root = Root { telling: &mut telling, say: &say };
                let went_on =
                    |rank: &mut Self, met: &mut Met| rank.go_on(&run, Some(&mut root), met);
                self.until(meetings, Some(met), went_on).map(drop)
            }
            Err(error) => Err(self.failed(met.comm, error)),
        };
        self.train.close(&run, &path, &say, &ended);
        ended
    }

    /// Does `attempt` at every meeting until no death of a rank ends it; none if the others are done without this rank.
    fn until<T>(
        &mut self,
        meetings: &mut MpiRendezvous,
        mut met: Option<Met>,
        mut attempt: impl FnMut(&mut Self, &mut Met) -> Result<T>,
    ) -> Result<Option<(T, Met)>> {
        loop {
            let next = match met.take() {
                Some(met) => Some(met),
                None => self.meet(meetings)?,
            };
            let Some(mut met) = next else { return Ok(None) };
            match attempt(self, &mut met) {
                Ok(done) => return Ok(Some((done, met))),
                Err(error) if is_death(&error) => met.comm.abort(&fault_of(&error, ROOT)),
                Err(error) => return Err(self.failed(met.comm, error)),
            }
        }
    }

    /// Meets all ranks, and hears where they stand.
    fn meet(&mut self, meetings: &mut MpiRendezvous) -> Result<Option<Met>> {
        let me = meetings.rank();
        loop {
            let met = meetings.meet().map_err(|e| anyhow::Error::from(e.into_fault(me)));
            let met = met.inspect_err(|error| self.told(me, error))?;
            let Some(Meeting { mut comm, .. }) = met else { return Ok(None) };
            let own = Standing {
                host: host_name(),
                beginning: self.beginning.clone(),
                folder: self.known.folder.get().cloned(),
                next: self.survivor.next(),
                n_in_vain: self.n_in_vain,
            };
            match share(&mut comm, &own, self.config.patience().first_step) {
                Ok(all) => match self.take_stock(me, &all) {
                    Ok(()) => return Ok(Some(Met { comm, all })),
                    Err(error) => return Err(self.failed(comm, error)),
                },
                Err(fault) if fault.is_death() => comm.abort(&fault),
                Err(fault) => return Err(self.failed(comm, fault.into())),
            }
        }
    }

    /// Notes where the others stand.
    ///
    /// # Errors
    /// If ranks die again and again, and no step is finished between.
    fn take_stock(&mut self, me: Rank, all: &[Standing]) -> Result<()> {
        let first = all.iter().find_map(|standing| Some(standing.beginning.as_ref()?.first_step));
        let furthest = all.iter().filter_map(|standing| standing.next).max();
        self.survivor.joins = furthest > first;
        self.n_in_vain = match furthest > self.furthest {
            true => 0,
            false => 1 + all.iter().map(|standing| standing.n_in_vain).max().unwrap_or(0),
        };
        self.furthest = furthest;
        if self.n_in_vain <= MOST_IN_VAIN {
            return Ok(());
        }
        let message = format!(
            "ranks have died {MOST_IN_VAIN} times without a finished step between: see what they said before that"
        );
        Err(Fault::new(Class::PeerLost, me, message).into())
    }

    /// Comes to a run that is ready to be trained: with all others, or alone where they have one.
    fn begin(&mut self, met: &mut Met) -> Result<Option<ReadyRun>> {
        let Met { comm, all } = met;
        let seat = seat(comm, all);
        let job = self.job(comm);
        let folder = all.iter().find_map(|standing| standing.folder.clone());
        let Some(beginning) = all.iter().find_map(|standing| standing.beginning.clone()) else {
            #[cfg(all(unix, debug_assertions))]
            let comm = &mut fault_injection::Struck::new(comm);
            return start_up(self.train, Ok(self.config.clone()), comm, &job, seat, folder);
        };
        let folder = folder.context("a run without a folder has begun")?;
        let _ = self.known.folder.set(folder.clone());
        let mut run = Run::prepare_again(self.config.clone(), &beginning, seat)?;
        run.join(&beginning, self.survivor.joins)?;
        saving(&mut run, &job, &folder);
        let mut root = None;
        if seat.rank == ROOT {
            // What comes after the last finished step is gone through again.
            let ahead = self.furthest.filter(|_| self.survivor.joins).map(|next| next - 1);
            let place = Place::take_over(folder.clone())?;
            let prometheus = listen(run.config())?;
            let first = ahead.unwrap_or(beginning.first_step);
            root = Some((place.begin(run.config(), first, &warn)?, prometheus));
            self.stop.concerns(&run, &folder);
        }
        Ok(Some(ReadyRun { run, root }))
    }

    /// Trains and concludes, from where this rank stands.
    fn go_on(
        &mut self,
        run: &Run,
        mut root: Option<&mut Root<'_, '_>>,
        met: &mut Met,
    ) -> Result<()> {
        let comm = &mut met.comm;
        comm.limit().expect_tensors(run.longest_tensor());
        let me = comm.rank();
        #[cfg(all(unix, debug_assertions))]
        let comm = &mut fault_injection::Struck::new(comm);
        let (stop, survivor, why_over) = (self.stop.flag(), &mut self.survivor, || None);
        let trained = match &mut root {
            Some(root) => root
                .telling
                .train(|observe| run.train_on(comm, survivor, stop, why_over, observe))?,
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

    /// Tells all others why the run ends.
    fn failed(&self, mut comm: Mpi, error: anyhow::Error) -> anyhow::Error {
        let me = comm.rank();
        if is_failed(&error, me) {
            announce(&mut comm, &fault_of(&error, me), format_args!("{error:#}"), self.known);
        }
        error
    }

    /// Tells whoever started the job why the run ends, where the ranks do not meet again.
    fn told(&self, me: Rank, error: &anyhow::Error) {
        if me == ROOT || matches!(fault_of(error, me).class, Class::PeerLost) {
            tell(format_args!("error: {error:#}"));
        }
    }

    fn job(&self, comm: &Mpi) -> Job<'_> {
        let (liveness, sums, limit) = (comm.liveness(), comm.sums(), comm.limit());
        Job { why: self.why, liveness, sums, limit, stop: self.stop, known: self.known }
    }
}

/// What rank 0 has beside the others.
struct Root<'r, 't> {
    telling: &'r mut Telling<'t>,
    say: &'r Say,
}

impl Root<'_, '_> {
    fn conclude(&mut self, train: &Train, run: &Run, trained: Trained) -> Result<()> {
        let (folder, seconds) = self.telling.end();
        train.conclude(run, folder, (trained, seconds), self.say)
    }
}

/// Whether a rank has died, and the others may go on.
fn is_death(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Fault>().is_some_and(Fault::is_death)
}

/// Where this rank is among those of its host.
fn seat(comm: &Mpi, all: &[Standing]) -> Seat {
    let rank = comm.rank();
    let host = &all[rank.index()].host;
    let n_local = |all: &[Standing]| all.iter().filter(|standing| standing.host == *host).count();
    Seat {
        rank,
        n_ranks: comm.n_ranks(),
        local: n_local(&all[..rank.index()]),
        n_local: n_local(all) as u32,
    }
}
