//! Where ranks meet over MPI, at the start and after deaths, which ULFM lets them survive.
//!
//! After a death all that live revoke the communicator of the last meeting, and shrink it to themselves. The first of them
//! spawns as many processes as are missing, all connect to these, and everyone takes the order of ranks, a new process in
//! the place of a dead one. What is lost on the way is found when they agree on whether each call has succeeded: then
//! they shrink again. Agreements and shrinking are the only calls that deaths do not disturb, so who has nothing left to
//! train takes part in them too, and says so. Where dead ranks are not to be replaced, that is all.
//!
//! A communicator is revoked by nobody before all that live have agreed that they have it: Open MPI 5.0 crashes where it
//! hears of the revocation of one that it is still making, since it calls collectives that it has not chosen yet. A new
//! process cannot agree with them, and revokes what they have used.
//!
//! One process spawns by itself, and not all together, since a spawn takes a second: a death in a spawn of all leaves the
//! others waiting in Open MPI 5.0 for ever, and so does one while they connect, which takes milliseconds.

use std::ffi::c_int;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use chimera_core::comm::{CommError, Meeting, Rendezvous};
use chimera_core::ids::Rank;

use crate::Mpi;
use crate::communicator::{Communicator, Port};
use crate::endpoint::{self, MpiEndpoint};
use crate::error::Failure;
use crate::peers::Watched;
use crate::shared::Shared;
use crate::ulfm::{Ulfm, leave_without_barrier};
use crate::watchdog::Watchdog;

/// Attempts to replace dead ranks, each after others have died on the way.
const ATTEMPTS: usize = 10;
/// In an agreement: there is something left to train.
const GOES_ON: c_int = 1;
/// In an agreement: no rank has come out of a meeting yet.
const IS_FIRST: c_int = 2;
/// In an agreement: those that live are enough.
const ARE_ENOUGH: c_int = 4;

/// Where the ranks of a job meet, and go on when one of them has died: MPI spawns a process of this program with the same
/// arguments in its place.
///
/// It needs an MPI library with ULFM, such as Open MPI 5 under `mpirun --with-ft ulfm`. The ranks [leave](Self::leave) it
/// together when all have been trained; one that is dropped before is, to the others, a dead rank once its process ends.
pub struct MpiRendezvous {
    /// Of the ranks at the last meeting, or of those of them that live.
    comm: Communicator,
    /// The ranks of `comm`, in order.
    members: Vec<Rank>,
    me: Rank,
    n_ranks: usize,
    /// The transport of the last meeting.
    shared: Option<Arc<Shared>>,
    /// Whether all ranks are in `comm`, and none has used it.
    is_complete: bool,
    /// Whether this rank takes a dead one's place.
    is_replacement: bool,
    /// Whether this rank has nothing that its stages have been trained to.
    is_first: bool,
    /// Whether dead ranks are replaced at every meeting.
    replaces: bool,
    /// Whether they are to be at the next one.
    asks: bool,
    /// Whether ranks that are stalled are ended.
    evicts_stalled: bool,
    /// The processes of the last meeting on this host.
    watched: Arc<Watched>,
    patience: Duration,
    warn: fn(&str),
}

impl MpiRendezvous {
    /// Starts MPI, once in a process, which a launcher has started or the ranks of a job in place of a dead one. In a
    /// meeting, ranks wait for each other for `patience`. Whoever calls is warned of deaths that would not be noticed.
    ///
    /// Returns `None` in a process that was spawned to no purpose, since another death came between, and has left MPI: it should
    /// end, well.
    ///
    /// # Errors
    /// If MPI has no ULFM, with what to install.
    pub fn start(patience: Duration, warn: fn(&str)) -> Result<Option<MpiRendezvous>, CommError> {
        let _universe = endpoint::start().map_err(CommError::Failed)?;
        let ulfm = Ulfm::find()?;
        let world = Communicator::world(ulfm).map_err(CommError::Failed)?;
        let parent = Communicator::parent(ulfm).map_err(CommError::Failed)?;
        let is_replacement = parent.is_some();
        let joined = match parent {
            Some(parent) => match join(&world, &parent) {
                Ok(Some((comm, is_first))) => Ok((comm, is_first, true)),
                Ok(None) => {
                    leave_without_barrier();
                    return endpoint::finalize().map(|()| None).map_err(CommError::Failed);
                }
                Err(_) => return Ok(None), // dead to the others, who would wait for one that leaves
            },
            // A communicator of its own, so that nobody else's messages are taken for ours; none after a death.
            None => {
                let own = world.on_all(world.duplicate());
                Ok(own.map_or((world, true, false), |comm| (comm, true, true)))
            }
        };
        let placed = joined.and_then(|(comm, is_first, is_complete)| {
            Ok((comm, is_first, is_complete, comm.rank()?, comm.size()?))
        });
        let (comm, is_first, is_complete, me, n_ranks) = placed.map_err(CommError::Failed)?;
        let members = (0..n_ranks as u32).map(Rank).collect();
        Ok(Some(MpiRendezvous {
            comm,
            members,
            me: Rank(me as u32),
            n_ranks,
            shared: None,
            is_complete,
            is_replacement,
            is_first,
            replaces: true,
            asks: false,
            evicts_stalled: false,
            watched: Arc::default(),
            patience,
            warn,
        }))
    }

    /// Starts no process in the place of a dead one: those that live meet without it.
    pub fn without_replacements(self) -> MpiRendezvous {
        MpiRendezvous { replaces: false, ..self }
    }

    /// Ends ranks that are stalled, so that the others go on as after a death: those that a [hang
    /// report](chimera_core::analyze::HangReport) names and that make no progress for as long again as was waited for them, and
    /// in a meeting those of each host that a signal has stopped for as long as ranks wait for each other. A rank that is
    /// [alone](Mpi::alone) on its host cannot be ended.
    pub fn evicting_stalled(self) -> MpiRendezvous {
        MpiRendezvous { evicts_stalled: true, ..self }
    }

    /// Asks for processes in the place of all dead ranks at the next meeting, which is without them if that fails.
    pub fn replace_missing(&mut self) {
        self.asks = true;
    }

    /// This process's rank, which is a dead one's if this process takes its place.
    pub fn rank(&self) -> Rank {
        self.me
    }

    /// Whether this process takes the place of a dead one.
    pub fn is_replacement(&self) -> bool {
        self.is_replacement
    }

    /// Leaves the job when all ranks do that live. The transport of the last meeting must have been dropped.
    ///
    /// # Errors
    /// If MPI fails.
    pub fn leave(mut self) -> Result<(), CommError> {
        self.regroup(false)?;
        leave_without_barrier();
        endpoint::finalize().map_err(CommError::Failed)
    }

    /// Ends all processes of the job at once, with this exit code.
    pub fn end_job(self, code: u8) {
        if let Some(shared) = &self.shared {
            shared.end_tending();
        }
        self.comm.abort(code);
    }

    /// Gathers the ranks that live, and replaces the others, if there is something left to train for all; whether there is.
    fn regroup(&mut self, goes_on: bool) -> Result<bool, CommError> {
        if let Some(shared) = self.shared.take() {
            shared.retire();
        }
        let end_stopped =
            || self.watchdog().end_stopped(Arc::clone(&self.watched), self.members.clone());
        let ends = self.evicts_stalled.then(end_stopped).transpose();
        let _until_dropped = ends.map_err(CommError::Failed)?;
        let is_first = if self.is_first { IS_FIRST } else { 0 };
        let goes_on = if goes_on { GOES_ON } else { 0 };
        for _ in 0..ATTEMPTS {
            self.shrink().map_err(CommError::Failed)?;
            let asks = replace(&mut self.asks, false);
            let are_enough = if asks || self.replaces { 0 } else { ARE_ENOUGH };
            let (bits, _) = self.comm.agree(goes_on | is_first | are_enough);
            if bits & GOES_ON == 0 {
                return Ok(false);
            }
            if bits & ARE_ENOUGH != 0 || self.members.len() == self.n_ranks {
                return Ok(true);
            }
            match self.respawn(bits & IS_FIRST != 0) {
                Ok(complete) => {
                    replace(&mut self.comm, complete).free();
                    self.members = (0..self.n_ranks as u32).map(Rank).collect();
                    return Ok(true);
                }
                Err(reason) => {
                    (self.warn)(&format!("{}: dead ranks are not replaced: {reason}", self.me))
                }
            }
        }
        let reason = format!("dead ranks were not replaced in {ATTEMPTS} attempts");
        Err(CommError::Failed(format!("{reason}: start again from the last checkpoint")))
    }

    /// Leaves the dead behind.
    fn shrink(&mut self) -> Result<(), Failure> {
        self.comm.revoke();
        let shrunk = self.comm.shrink()?;
        let lives = self.comm.are_in(&shrunk)?;
        let mut lives = lives.iter();
        self.members.retain(|_| lives.next().copied().unwrap_or(false));
        self.comm = shrunk; // nobody waits for what is still under way on the other, which is not freed for that
        Ok(())
    }

    /// Spawns processes in place of the dead, and joins them: all ranks that live succeed, or none.
    fn respawn(&self, is_first: bool) -> Result<Communicator, Failure> {
        let dead = (0..self.n_ranks as u32).map(Rank).filter(|rank| !self.members.contains(rank));
        let mut numbers = vec![i32::from(is_first)];
        numbers.extend(dead.map(|rank| rank.0 as i32));
        let _until_dropped = self.watchdog().end_if_late()?;
        let is_root = self.comm.rank()? == 0;
        let spawned = is_root.then(|| self.spawn(numbers.len() - 1)).transpose();
        let are_spawned = self.comm.all_have(spawned.is_ok());
        let mut told = Ok(Port::none());
        if let Some((pair, mut port)) = spawned? {
            if !are_spawned {
                // Those that were spawned end by themselves. They may still be making `pair`, which nobody may revoke then.
                replace(&mut port, Port::none()).close();
            }
            told = pair.broadcast_port(&mut port).map(|()| port);
            pair.free();
        }
        if !are_spawned {
            return Err("a rank has died meanwhile, or nothing can be spawned".into());
        }
        let between = self.made_of(&self.comm, |comm| {
            let port = told?;
            let between = comm.accept(&port);
            if is_root {
                port.close();
            }
            between
        })?;
        let merged = self.made_of(&between, |between| between.merge(false))?;
        let complete = self.made_of(&merged, |merged| {
            merged.broadcast(&mut numbers)?;
            merged.reorder(self.me.index())
        });
        merged.free();
        between.free();
        complete
    }

    /// What all ranks that live make of `comm`. It is revoked on a failure, so that nobody waits in it.
    fn made_of(
        &self,
        comm: &Communicator,
        make: impl FnOnce(&Communicator) -> Result<Communicator, Failure>,
    ) -> Result<Communicator, Failure> {
        self.comm.on_all(make(comm).inspect_err(|_| comm.revoke()))
    }

    /// Spawns `n` processes, which wait for the name of the port.
    fn spawn(&self, n: usize) -> Result<(Communicator, Port), Failure> {
        let _until_dropped = self.watchdog().die_if_late()?;
        let port = Port::open()?;
        let between = self.comm.alone()?.spawn(n)?;
        let pair = between.merge(false)?;
        between.free();
        Ok((pair, port))
    }

    fn open(&mut self) -> Result<Mpi, CommError> {
        let mut mpi = Mpi::over(MpiEndpoint::survivable(self.comm));
        mpi.evicts_stalled = self.evicts_stalled;
        self.shared = Some(Arc::clone(&mpi.shared));
        mpi.begin(self.patience, self.warn)?;
        self.watched = Arc::clone(&mpi.watched);
        Ok(mpi)
    }

    fn watchdog(&self) -> Watchdog {
        Watchdog { me: self.me, patience: self.patience, warn: self.warn }
    }
}

impl Rendezvous<Mpi> for MpiRendezvous {
    fn meet(&mut self) -> Result<Option<Meeting<Mpi>>, CommError> {
        loop {
            if !replace(&mut self.is_complete, false) && !self.regroup(true)? {
                return Ok(None);
            }
            match self.open() {
                Ok(comm) => {
                    let is_first = replace(&mut self.is_first, false);
                    let present = self.members.clone();
                    return Ok(Some(Meeting { comm, is_first, present }));
                }
                Err(error) if is_death(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_death(error: &CommError) -> bool {
    match error {
        CommError::Lost { .. } => true,
        CommError::Aborted(cause) => cause.is_death(),
        _ => false,
    }
}

/// Joins the job of the process that has spawned this one: all ranks in order, and whether they have not met before. `None`
/// if this one is not needed.
fn join(
    world: &Communicator,
    parent: &Communicator,
) -> Result<Option<(Communicator, bool)>, Failure> {
    let pair = parent.merge(true)?;
    let mut port = Port::none();
    pair.broadcast_port(&mut port)?;
    pair.free();
    if port.is_none() {
        return Ok(None);
    }
    let between = world.connect(&port)?;
    let merged = between.merge(true)?;
    let mut numbers = vec![0; 1 + world.size()?];
    let nth = world.rank()?;
    merged.broadcast(&mut numbers)?;
    // Who hears the numbers knows that all others have `merged`.
    let complete = merged.reorder(numbers[1 + nth] as usize).inspect_err(|_| merged.revoke())?;
    merged.free();
    between.free();
    Ok(Some((complete, numbers[0] != 0)))
}
