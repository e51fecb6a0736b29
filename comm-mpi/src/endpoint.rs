//! MPI itself: messages and sums. Only [the error texts](crate::error) and, between two meetings,
//! the calls that survive deaths use MPI elsewhere.
//!
//! The `unsafe` blocks rely on four things:
//! - *One thread at a time.* MPI is initialised for `MPI_THREAD_SERIALIZED`. Every call but the
//!   first is a method of [`MpiEndpoint`]. There is one endpoint, in a mutex.
//! - *Communicators last.* No communicator that carries messages is freed before
//!   [`MpiEndpoint::close`], after which there is no endpoint, or the end of the process.
//! - *Buffers outlive requests.* A message under way is a [`PendingRequest`], which owns its
//!   memory. It is removed only when MPI reports its request as complete. An endpoint that is
//!   dropped earlier leaks pending messages, since MPI may still write to them.
//! - *Results are written.* Every call's return code is checked under `MPI_ERRORS_RETURN` before
//!   its results are read.

mod death;

use std::ffi::c_int;
use std::mem::{ManuallyDrop, MaybeUninit, forget};

use chimera_core::ids::Rank;
use mpi::environment::{Threading, Universe, initialize_with_threading};
use mpi::ffi;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{AsRaw, Communicator, FromRaw, Group};

use crate::communicator::Communicator as Survivable;
use crate::error::{Failure, check};

/// The tag of all messages; their footer has their kind.
const TAG: c_int = 0;
/// The tag for making communicators, with which MPI itself may send messages.
const MEETING: c_int = 1;

/// The most messages that one call of `progress` begins to receive.
const BATCH: usize = 32;
/// Words that any message may have: rank 0 may send a schedule before tensor sizes are known.
const ALWAYS_EXPECTED: usize = (64 << 20) / size_of::<f32>();

/// This process's end of MPI.
pub(crate) struct MpiEndpoint {
    comm: ManuallyDrop<SimpleCommunicator>,
    /// The communicator that `comm` wraps, if the job survives deaths of its ranks.
    survivable: Option<Survivable>,
    /// Communicators for sums, by their ranks.
    groups: Vec<(Vec<Rank>, ManuallyDrop<SimpleCommunicator>)>,
    /// Words of the longest message that is received.
    longest: usize,
    pub(crate) me: Rank,
    pub(crate) n_ranks: u32,
    /// MPI's requests in the order of `pending`.
    requests: Vec<ffi::MPI_Request>,
    pending: Vec<PendingRequest>,
    /// The indices of complete requests, which MPI writes.
    completed: Vec<c_int>,
    statuses: Vec<ffi::MPI_Status>,
}

// SAFETY: handles of MPI belong to the process, not to a thread.
unsafe impl Send for MpiEndpoint {}

/// A message's words, or the reason for refusing it.
pub(crate) type Received = Result<Vec<f32>, String>;

/// A message under way, with its memory.
struct PendingRequest {
    peer: Rank,
    words: Vec<f32>,
    /// Number of words that MPI writes; `None` if MPI reads `words`.
    incoming: Option<usize>,
    /// The buffer that MPI reads while it writes `words`.
    _part: Vec<f32>,
}

impl PendingRequest {
    /// Takes over the received words; MPI must have reported the request as complete.
    fn completed(mut self) -> PendingRequest {
        if let Some(n) = self.incoming {
            // SAFETY: there was room for `n` words, and MPI has written them.
            unsafe { self.words.set_len(n) };
        }
        self
    }
}

impl MpiEndpoint {
    /// Initialises MPI, which is possible once in a process.
    pub(crate) fn open() -> Result<MpiEndpoint, Failure> {
        let universe = start()?;
        // A communicator of its own keeps other messages apart from ours.
        let comm = ManuallyDrop::new(universe.world().duplicate());
        return_errors(&comm)?;
        Ok(MpiEndpoint::over(comm, None))
    }

    /// Returns an endpoint of a communicator whose ranks may die.
    pub(crate) fn survivable(comm: Survivable) -> MpiEndpoint {
        // SAFETY: the handle is an intracommunicator's, and only this endpoint uses it.
        let simple = unsafe { SimpleCommunicator::from_raw(comm.raw) };
        MpiEndpoint::over(ManuallyDrop::new(simple), Some(comm))
    }

    fn over(comm: ManuallyDrop<SimpleCommunicator>, survivable: Option<Survivable>) -> MpiEndpoint {
        MpiEndpoint {
            survivable,
            groups: Vec::new(),
            longest: ALWAYS_EXPECTED,
            me: Rank(comm.rank() as u32),
            n_ranks: comm.size() as u32,
            comm,
            requests: Vec::new(),
            pending: Vec::new(),
            completed: Vec::new(),
            statuses: Vec::new(),
        }
    }

    /// Receives messages of up to `n_words` words more than are always expected.
    pub(crate) fn expect(&mut self, n_words: usize) {
        self.longest = ALWAYS_EXPECTED.saturating_add(n_words);
    }

    /// Starts sending words.
    pub(crate) fn send(&mut self, to: Rank, words: Vec<f32>) -> Result<(), Failure> {
        let count = c_int::try_from(words.len())
            .map_err(|_| format!("{} words are too many for one message", words.len()))?;
        let mut request = MaybeUninit::uninit();
        // SAFETY: `words` lives in the pending request until the request is complete, and nobody changes it.
        let request = unsafe {
            let (from, kind) = (words.as_ptr().cast(), ffi::RSMPI_FLOAT);
            let to = to.0 as c_int;
            let (comm, request_at) = (self.comm.as_raw(), request.as_mut_ptr());
            check("MPI_Isend", ffi::MPI_Isend(from, count, kind, to, TAG, comm, request_at))?;
            request.assume_init()
        };
        let pending = PendingRequest { peer: to, words, incoming: None, _part: Vec::new() };
        self.track(request, pending).map(drop)
    }

    /// Makes a communicator for sums over `members`. Every member calls it with the same list.
    pub(crate) fn open_sums(&mut self, members: &[Rank]) -> Result<(), Failure> {
        let ranks: Vec<_> = members.iter().map(|rank| rank.0 as c_int).collect();
        let group = self.comm.group().include(&ranks);
        let mut comm = MaybeUninit::uninit();
        // SAFETY: the pointer is to a local, which is read after a successful call; what it then holds is a
        // communicator, since this rank is a member, and nobody else has it.
        let comm = unsafe {
            let (all, to) = (self.comm.as_raw(), comm.as_mut_ptr());
            let made = ffi::MPI_Comm_create_group(all, group.as_raw(), MEETING, to);
            check("MPI_Comm_create_group", made)?;
            ManuallyDrop::new(SimpleCommunicator::from_raw(comm.assume_init()))
        };
        return_errors(&comm)?;
        self.groups.push((members.to_vec(), comm));
        Ok(())
    }

    /// Starts a sum of the first `n` words over the ranks of a group; later words are kept.
    pub(crate) fn sum(
        &mut self,
        members: &[Rank],
        n: usize,
        part: Vec<f32>,
    ) -> Result<(), Failure> {
        let group = self.groups.iter().find(|(ranks, _)| ranks == members);
        let comm = group.ok_or("a sum over ranks that have not met for it")?.1.as_raw();
        let count =
            c_int::try_from(n).map_err(|_| format!("{n} words are too many for one sum"))?;
        let mut words = part.clone();
        let mut request = MaybeUninit::uninit();
        // SAFETY: both have at least `n` words. They live in the pending request until the request
        // is complete, and nobody else touches them.
        let request = unsafe {
            let (from, to) = (part.as_ptr().cast(), words.as_mut_ptr().cast());
            let (kind, sum, at) = (ffi::RSMPI_FLOAT, ffi::RSMPI_SUM, request.as_mut_ptr());
            check("MPI_Iallreduce", ffi::MPI_Iallreduce(from, to, count, kind, sum, comm, at))?;
            request.assume_init()
        };
        self.requests.push(request);
        self.pending.push(PendingRequest {
            peer: self.me,
            incoming: Some(words.len()),
            words,
            _part: part,
        });
        Ok(())
    }

    /// Lets MPI make progress: begins to receive announced messages, and passes completed ones, or
    /// the reason for refusing one, to `take`. Returns true if anything happened; then more may
    /// have been announced.
    pub(crate) fn progress(
        &mut self,
        mut take: impl FnMut(Rank, Received),
    ) -> Result<bool, Failure> {
        let mut n_begun = 0;
        while n_begun < BATCH && self.receive_next(&mut take)? {
            n_begun += 1;
        }
        Ok(self.complete(&mut take)? || n_begun > 0)
    }

    /// Returns true if messages or sums are under way.
    pub(crate) fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns true if messages are under way. A sum that some never begin stays for ever.
    pub(crate) fn has_messages(&self) -> bool {
        self.pending.iter().any(|pending| pending.peer != self.me)
    }

    /// Returns true if a message from `peer` is under way.
    pub(crate) fn is_receiving_from(&self, peer: Rank) -> bool {
        self.pending.iter().any(|f| f.incoming.is_some() && f.peer == peer)
    }

    /// Begins to receive one message, if there is one; a short one arrives at once. A refused
    /// message is never received, so the run must end.
    fn receive_next(&mut self, take: &mut impl FnMut(Rank, Received)) -> Result<bool, Failure> {
        let (mut flag, mut count) = (0, 0);
        let (mut message, mut status) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: `message` and `status` are read only if MPI says that it wrote them.
        let (mut message, status) = unsafe {
            let any = ffi::RSMPI_ANY_SOURCE;
            let (to, how) = (message.as_mut_ptr(), status.as_mut_ptr());
            let comm = self.comm.as_raw();
            check("MPI_Improbe", ffi::MPI_Improbe(any, TAG, comm, &mut flag, to, how))?;
            if flag == 0 {
                return Ok(false);
            }
            (message.assume_init(), status.assume_init())
        };
        // SAFETY: reads a status that MPI wrote.
        check("MPI_Get_count", unsafe {
            ffi::MPI_Get_count(&status, ffi::RSMPI_FLOAT, &mut count)
        })?;
        let peer = Rank(status.MPI_SOURCE as u32);
        let mut words = match self.room(count) {
            Ok(words) => words,
            Err(reason) => {
                take(peer, Err(reason));
                return Ok(true);
            }
        };
        let mut request = MaybeUninit::uninit();
        // SAFETY: there is room for `n` words, which lives in the pending request until the request is complete.
        let request = unsafe {
            let (to, kind) = (words.as_mut_ptr().cast(), ffi::RSMPI_FLOAT);
            let taken = ffi::MPI_Imrecv(to, count, kind, &mut message, request.as_mut_ptr());
            check("MPI_Imrecv", taken)?;
            request.assume_init()
        };
        if let Some(PendingRequest { peer, words, .. }) = self.track(
            request,
            PendingRequest { peer, words, incoming: Some(count as usize), _part: Vec::new() },
        )? {
            take(peer, Ok(words));
        }
        Ok(true)
    }

    /// Allocates memory for a message of `count` words, if one that long is expected.
    fn room(&self, count: c_int) -> Received {
        let n = usize::try_from(count).map_err(|_| "it is not made of whole words")?;
        if n > self.longest {
            let mib = |n: usize| n as f64 * size_of::<f32>() as f64 / f64::from(1 << 20);
            let (is, may_be) = (mib(n), mib(self.longest));
            return Err(format!("it has {is:.1} MiB, but at most {may_be:.1} MiB are expected"));
        }
        let mut words = Vec::new();
        words.try_reserve_exact(n).map_err(|e| format!("no memory for its {n} words: {e}"))?;
        Ok(words)
    }

    /// Keeps a request that is under way; returns one that is complete, as short messages are.
    fn track(
        &mut self,
        mut request: ffi::MPI_Request,
        pending: PendingRequest,
    ) -> Result<Option<PendingRequest>, Failure> {
        let (mut flag, mut status) = (0, MaybeUninit::uninit());
        // SAFETY: the pending request holds the memory of the request. The status is not read.
        let tested = unsafe { ffi::MPI_Test(&mut request, &mut flag, status.as_mut_ptr()) };
        if flag == 0 || tested != ffi::MPI_SUCCESS as c_int {
            self.requests.push(request);
            self.pending.push(pending);
            return check("MPI_Test", tested).map(|()| None);
        }
        Ok(Some(pending.completed()))
    }

    /// Removes complete requests, and passes received messages to `take`.
    fn complete(&mut self, take: &mut impl FnMut(Rank, Received)) -> Result<bool, Failure> {
        let n = self.requests.len();
        if n == 0 {
            return Ok(false);
        }
        self.completed.resize(n, 0);
        self.statuses.reserve(n);
        let mut n_completed = 0;
        // SAFETY: all arrays have room for `n` entries. Statuses are not read.
        check("MPI_Testsome", unsafe {
            let (requests, statuses) = (self.requests.as_mut_ptr(), self.statuses.as_mut_ptr());
            let completed = self.completed.as_mut_ptr();
            ffi::MPI_Testsome(n as c_int, requests, &mut n_completed, completed, statuses)
        })?;
        // `MPI_UNDEFINED`, which is below 0, means that no active request is left.
        let n_completed = usize::try_from(n_completed).unwrap_or(0);
        self.completed.truncate(n_completed);
        self.completed.sort_unstable_by_key(|index| std::cmp::Reverse(*index));
        for index in &self.completed {
            self.requests.swap_remove(*index as usize);
            let PendingRequest { peer, words, incoming, .. } =
                self.pending.swap_remove(*index as usize).completed();
            if incoming.is_some() {
                take(peer, Ok(words));
            }
        }
        Ok(n_completed > 0)
    }

    /// Ends MPI after all ranks have called it. Nothing may be under way.
    pub(crate) fn close(self) -> Result<(), Failure> {
        if !self.pending.is_empty() {
            return Err("messages are still under way".into());
        }
        finalize()
    }

    pub(crate) fn abort(&self, code: u8) -> ! {
        self.comm.abort(code.into());
    }
}

impl Drop for MpiEndpoint {
    fn drop(&mut self) {
        forget(std::mem::take(&mut self.pending)); // see above
    }
}

/// Initialises MPI, which is possible once in a process.
pub(crate) fn start() -> Result<ManuallyDrop<Universe>, Failure> {
    let opened = initialize_with_threading(Threading::Serialized);
    let (universe, level) = opened.ok_or("MPI was started before in this process")?;
    if level < Threading::Serialized {
        forget(universe);
        return Err("this MPI cannot be called by one thread after another".into());
    }
    Ok(ManuallyDrop::new(universe))
}

/// Ends MPI. Nothing may be under way.
pub(crate) fn finalize() -> Result<(), Failure> {
    // SAFETY: nothing is under way, and nobody calls MPI after this.
    check("MPI_Finalize", unsafe { ffi::MPI_Finalize() })
}

/// Lets calls on `comm` return an error instead of ending the job.
fn return_errors(comm: &SimpleCommunicator) -> Result<(), Failure> {
    // SAFETY: the handle is a communicator's, and the other one a constant.
    check("MPI_Comm_set_errhandler", unsafe {
        ffi::MPI_Comm_set_errhandler(comm.as_raw(), ffi::RSMPI_ERRORS_RETURN)
    })
}
