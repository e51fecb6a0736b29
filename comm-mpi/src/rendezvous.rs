//! Meetings of ranks over MPI: at the start, and after deaths, which ULFM lets them survive.
//!
//! After a death all living ranks revoke the communicator of the last meeting, and shrink it to
//! themselves. The first of them spawns as many processes as are missing, and all connect to these.
//! Then all adopt the old order of ranks, with a new process in place of each dead one. Ranks agree
//! on the success of each call: if a process was lost on the way, they shrink again. Agreements and
//! shrinking are the only calls that deaths do not disturb, so a rank that has nothing left to
//! train takes part in them too, and reports that. If dead ranks are not replaced, that is all.
//!
//! Nobody revokes a communicator before all living ranks have agreed that they have it. Open MPI
//! 5.0 crashes when it learns of the revocation of a communicator that it is still making, since it
//! calls collectives that it has not chosen yet. A new process cannot agree with them, and revokes
//! the communicator that they have used.
//!
//! One process spawns by itself, not all together, since a spawn takes a second. A death during a
//! common spawn leaves the others waiting in Open MPI 5.0 for ever. A death while they connect does
//! so too, but connecting takes milliseconds.

use std::ffi::c_int;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use chimera_core::comm::{CommError, Meeting, ProcessRendezvous, Rendezvous};
use chimera_core::ids::Rank;

use crate::Mpi;
use crate::communicator::{Communicator, Port};
use crate::detection::peers::Watched;
use crate::detection::watchdog::Watchdog;
use crate::endpoint::{self, MpiEndpoint};
use crate::error::Failure;
use crate::shared::Shared;
use crate::ulfm::{Ulfm, leave_without_barrier};

/// The most attempts to replace dead ranks, each after a further death.
const ATTEMPTS: usize = 10;
/// Flag in an agreement: there is something left to train.
const GOES_ON: c_int = 1;
/// Flag in an agreement: no rank has completed a meeting yet.
const IS_FIRST: c_int = 2;
/// Flag in an agreement: the living ranks are enough.
const ARE_ENOUGH: c_int = 4;

/// The meeting point of a job's ranks, which go on when one has died: MPI spawns a process of this
/// program with the same arguments to replace it.
///
/// It needs an MPI library with ULFM, such as Open MPI 5 under `mpirun --with-ft ulfm`. The ranks
/// [leave](ProcessRendezvous::leave) together when all have been trained. A rank that drops it earlier is dead
/// to the others once its process ends.
pub struct MpiRendezvous {
    /// The ranks of the last meeting, or its survivors.
    comm: Communicator,
    /// The ranks of `comm`, in order.
    members: Vec<Rank>,
    me: Rank,
    n_ranks: usize,
    /// The transport of the last meeting.
    shared: Option<Arc<Shared>>,
    /// Whether `comm` has all ranks and has not been used.
    is_complete: bool,
    /// Whether this rank replaces a dead one.
    is_replacement: bool,
    /// Whether this rank holds no trained state.
    is_first: bool,
    /// Whether dead ranks are replaced at every meeting.
    replaces: bool,
    /// Whether dead ranks are replaced at the next meeting.
    asks: bool,
    /// Whether stalled ranks are ended.
    evicts_stalled: bool,
    /// Watches the processes of the last meeting.
    watched: Arc<Watched>,
    patience: Duration,
    warn: fn(&str),
}

impl MpiRendezvous {
    /// Starts MPI, which is possible once in a process. The process was started by a launcher, or
    /// spawned by the ranks of a job to replace a dead one. In a meeting, ranks wait for each other
    /// for `patience`. Calls `warn` if deaths would not be noticed.
    ///
    /// Returns `None` in a process that is not needed because another death intervened. It has left
    /// MPI, and should exit successfully.
    ///
    /// # Errors
    /// If MPI has no ULFM, with installation advice.
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
                Err(_) => return Ok(None), // counts as dead: the others would wait for a rank that leaves
            },
            // Its own communicator keeps other messages apart; after a death there is none.
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

    /// Lets the living ranks meet without replacements for dead ones.
    pub fn without_replacements(self) -> MpiRendezvous {
        MpiRendezvous { replaces: false, ..self }
    }

    /// Ends stalled ranks, so that the others go on as after a death. A rank counts as stalled if a
    /// [hang report](chimera_core::analyze::HangReport) names it and it makes no progress for the
    /// same time again. In a meeting, so does a rank that a signal has stopped for longer than
    /// ranks wait for each other. A rank that is [alone](chimera_core::comm::Control::alone) on its host cannot be ended.
    pub fn evicting_stalled(self) -> MpiRendezvous {
        MpiRendezvous { evicts_stalled: true, ..self }
    }

    /// Returns true if this process replaces a dead one.
    pub fn is_replacement(&self) -> bool {
        self.is_replacement
    }

    /// Ends all processes of the job at once, with this exit code.
    pub fn end_job(self, code: u8) {
        if let Some(shared) = &self.shared {
            shared.end_tending();
        }
        self.comm.abort(code);
    }

    /// Gathers the living ranks and replaces the others; returns false if any rank is done.
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

    /// Removes the dead ranks.
    fn shrink(&mut self) -> Result<(), Failure> {
        self.comm.revoke();
        let shrunk = self.comm.shrink()?;
        let lives = self.comm.are_in(&shrunk)?;
        let mut lives = lives.iter();
        self.members.retain(|_| lives.next().copied().unwrap_or(false));
        self.comm = shrunk; // the old one has pending messages, so it is not freed
        Ok(())
    }

    /// Replaces the dead by spawned processes, on all living ranks or on none.
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
                // Spawned processes end by themselves; nobody may revoke `pair` meanwhile.
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

    /// Returns what all living ranks make of `comm`, which a failure revokes, so nobody waits.
    fn made_of(
        &self,
        comm: &Communicator,
        make: impl FnOnce(&Communicator) -> Result<Communicator, Failure>,
    ) -> Result<Communicator, Failure> {
        self.comm.on_all(make(comm).inspect_err(|_| comm.revoke()))
    }

    /// Spawns `n` processes, which wait for the port's name.
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

impl ProcessRendezvous for MpiRendezvous {
    type End = Mpi;

    fn rank(&self) -> Rank {
        self.me
    }

    fn replace_missing(&mut self) {
        self.asks = true;
    }

    fn leave(mut self) -> Result<(), CommError> {
        self.regroup(false)?;
        leave_without_barrier();
        endpoint::finalize().map_err(CommError::Failed)
    }
}

fn is_death(error: &CommError) -> bool {
    match error {
        CommError::Lost { .. } => true,
        CommError::Aborted(cause) => cause.is_death(),
        _ => false,
    }
}

/// Joins the job of the process that spawned this one. Returns all ranks in order, and whether they
/// have not met before; `None` if this process is not needed.
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
    // A rank that receives the numbers knows that all others have `merged`.
    let complete = merged.reorder(numbers[1 + nth] as usize).inspect_err(|_| merged.revoke())?;
    merged.free();
    between.free();
    Ok(Some((complete, numbers[0] != 0)))
}
