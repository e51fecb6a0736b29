//! MPI itself: the only file that calls it, but for [its words](crate::words).
//!
//! What the `unsafe` blocks rely on:
//! - *One thread at a time.* MPI is initialised for `MPI_THREAD_SERIALIZED`. Every call but the first is a
//!   method of [`Wire`], of which there is one and which lives in a mutex.
//! - *Buffers outlive requests.* A message under way is a [`Flight`], which owns its memory; it is removed
//!   only when MPI says that its request is complete. A wire that is dropped before leaks what is under way,
//!   since MPI may still write to it.
//! - *Results are written.* Every call's return code is checked under `MPI_ERRORS_RETURN` before what it
//!   wrote is read.

use std::ffi::c_int;
use std::mem::{MaybeUninit, forget};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use chimera_core::ids::Rank;
use mpi_sys as ffi;

use crate::words::{Failure, check};

/// All messages have the same tag; what they are, they say themselves.
const TAG: c_int = 0;

/// This process's end of MPI.
pub(crate) struct Wire {
    comm: ffi::MPI_Comm,
    /// Communicators for sums, by their ranks.
    groups: Vec<(Vec<Rank>, ffi::MPI_Comm)>,
    pub(crate) me: Rank,
    pub(crate) n_ranks: u32,
    /// Beside `flights`, as MPI wants them.
    requests: Vec<ffi::MPI_Request>,
    flights: Vec<Flight>,
    /// Where MPI writes which requests are complete.
    completed: Vec<c_int>,
    statuses: Vec<ffi::MPI_Status>,
}

// SAFETY: handles of MPI belong to the process, not to a thread.
unsafe impl Send for Wire {}

/// A message under way, with its memory.
struct Flight {
    peer: Rank,
    words: Vec<f32>,
    /// How many words MPI writes; `None` if it reads them.
    incoming: Option<usize>,
    /// What MPI reads while it writes.
    _part: Vec<f32>,
}

impl Flight {
    /// The same when MPI has said that its request is complete.
    fn landed(mut self) -> Flight {
        if let Some(n) = self.incoming {
            // SAFETY: there was room for `n` words, and MPI has written them.
            unsafe { self.words.set_len(n) };
        }
        self
    }
}

impl Wire {
    /// Initialises MPI, which is possible once in a process.
    pub(crate) fn open() -> Result<Wire, Failure> {
        static OPENED: AtomicBool = AtomicBool::new(false);
        if OPENED.swap(true, Ordering::SeqCst) {
            return Err("MPI was started before in this process".into());
        }
        let (mut provided, mut me, mut n_ranks) = (0, 0, 0);
        // SAFETY: called once. Without arguments is allowed since MPI 2.
        check("MPI_Init_thread", unsafe {
            let wanted = ffi::RSMPI_THREAD_SERIALIZED;
            ffi::MPI_Init_thread(null_mut(), null_mut(), wanted, &mut provided)
        })?;
        // SAFETY: reads a constant.
        if provided < unsafe { ffi::RSMPI_THREAD_SERIALIZED } {
            return Err("this MPI cannot be called by one thread after another".into());
        }
        let mut comm = MaybeUninit::uninit();
        // SAFETY: MPI is initialised; the pointers are to locals; `comm` is read after a successful call.
        unsafe {
            // A communicator of its own, so that nobody else's messages are taken for ours.
            check("MPI_Comm_dup", ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, comm.as_mut_ptr()))?;
            let comm = comm.assume_init();
            let returns = ffi::RSMPI_ERRORS_RETURN;
            check("MPI_Comm_set_errhandler", ffi::MPI_Comm_set_errhandler(comm, returns))?;
            check("MPI_Comm_rank", ffi::MPI_Comm_rank(comm, &mut me))?;
            check("MPI_Comm_size", ffi::MPI_Comm_size(comm, &mut n_ranks))?;
            Ok(Wire {
                comm,
                groups: Vec::new(),
                me: Rank(me as u32),
                n_ranks: n_ranks as u32,
                requests: Vec::new(),
                flights: Vec::new(),
                completed: Vec::new(),
                statuses: Vec::new(),
            })
        }
    }

    /// Puts words on their way.
    pub(crate) fn send(&mut self, to: Rank, words: Vec<f32>) -> Result<(), Failure> {
        let count = c_int::try_from(words.len())
            .map_err(|_| format!("{} words are too many for one message", words.len()))?;
        let mut request = MaybeUninit::uninit();
        // SAFETY: `words` lives in the flight until the request is complete, and nobody changes it.
        let request = unsafe {
            let (from, kind) = (words.as_ptr().cast(), ffi::RSMPI_FLOAT);
            let to = to.0 as c_int;
            let sent = ffi::MPI_Isend(from, count, kind, to, TAG, self.comm, request.as_mut_ptr());
            check("MPI_Isend", sent)?;
            request.assume_init()
        };
        let flight = Flight { peer: to, words, incoming: None, _part: Vec::new() };
        self.fly(request, flight).map(drop)
    }

    /// Makes a communicator for sums over `members`; all ranks of the job call it with the same, also those that
    /// are none of them.
    pub(crate) fn open_sums(&mut self, members: &[Rank]) -> Result<(), Failure> {
        let is_member = members.contains(&self.me);
        // SAFETY: reads a constant.
        let color = if is_member { 0 } else { unsafe { ffi::RSMPI_UNDEFINED } };
        let mut comm = MaybeUninit::uninit();
        // SAFETY: the pointer is to a local, which is read after a successful call.
        let comm = unsafe {
            let (key, to) = (self.me.0 as c_int, comm.as_mut_ptr());
            check("MPI_Comm_split", ffi::MPI_Comm_split(self.comm, color, key, to))?;
            comm.assume_init()
        };
        if is_member {
            self.groups.push((members.to_vec(), comm));
        }
        Ok(())
    }

    /// Begins a sum of the first `n` words over the ranks of a group; those behind stay as they are.
    pub(crate) fn sum(
        &mut self,
        members: &[Rank],
        n: usize,
        part: Vec<f32>,
    ) -> Result<(), Failure> {
        let group = self.groups.iter().find(|(ranks, _)| ranks == members);
        let comm = group.ok_or("a sum over ranks that have not met for it")?.1;
        let count =
            c_int::try_from(n).map_err(|_| format!("{n} words are too many for one sum"))?;
        let mut words = part.clone();
        let mut request = MaybeUninit::uninit();
        // SAFETY: both have at least `n` words and live in the flight until the request is complete, and nobody
        // else touches them.
        let request = unsafe {
            let (from, to) = (part.as_ptr().cast(), words.as_mut_ptr().cast());
            let (kind, sum, at) = (ffi::RSMPI_FLOAT, ffi::RSMPI_SUM, request.as_mut_ptr());
            check("MPI_Iallreduce", ffi::MPI_Iallreduce(from, to, count, kind, sum, comm, at))?;
            request.assume_init()
        };
        self.requests.push(request);
        self.flights.push(Flight {
            peer: self.me,
            incoming: Some(words.len()),
            words,
            _part: part,
        });
        Ok(())
    }

    /// Lets MPI proceed: begins to receive a message that has been announced, and gives what is complete to
    /// `take`. Returns whether anything happened; then more may have been announced.
    pub(crate) fn progress(
        &mut self,
        mut take: impl FnMut(Rank, Vec<f32>),
    ) -> Result<bool, Failure> {
        let has_begun = self.receive_next(&mut take)?;
        Ok(self.complete(&mut take)? || has_begun)
    }

    /// Whether messages or sums are under way.
    pub(crate) fn is_busy(&self) -> bool {
        !self.flights.is_empty()
    }

    /// Whether messages are under way: a sum that some never begin stays for ever.
    pub(crate) fn has_messages(&self) -> bool {
        self.flights.iter().any(|flight| flight.peer != self.me)
    }

    /// Whether a message from `peer` is under way.
    pub(crate) fn is_receiving_from(&self, peer: Rank) -> bool {
        self.flights.iter().any(|f| f.incoming.is_some() && f.peer == peer)
    }

    /// Begins to receive one message, if there is one; a short one comes at once.
    fn receive_next(&mut self, take: &mut impl FnMut(Rank, Vec<f32>)) -> Result<bool, Failure> {
        let (mut flag, mut count) = (0, 0);
        let (mut message, mut status) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: `message` and `status` are read only if MPI says that it wrote them.
        let (mut message, status) = unsafe {
            let any = (ffi::RSMPI_ANY_SOURCE, ffi::RSMPI_ANY_TAG);
            let (to, how) = (message.as_mut_ptr(), status.as_mut_ptr());
            check("MPI_Improbe", ffi::MPI_Improbe(any.0, any.1, self.comm, &mut flag, to, how))?;
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
        let n = usize::try_from(count)
            .map_err(|_| format!("{peer} sent a message that is not made of whole words"))?;
        let mut words: Vec<f32> = Vec::new();
        words
            .try_reserve_exact(n)
            .map_err(|e| format!("no memory for a message of {n} words from {peer}: {e}"))?;
        let mut request = MaybeUninit::uninit();
        // SAFETY: there is room for `n` words, which lives in the flight until the request is complete.
        let request = unsafe {
            let (to, kind) = (words.as_mut_ptr().cast(), ffi::RSMPI_FLOAT);
            let taken = ffi::MPI_Imrecv(to, count, kind, &mut message, request.as_mut_ptr());
            check("MPI_Imrecv", taken)?;
            request.assume_init()
        };
        if let Some(Flight { peer, words, .. }) =
            self.fly(request, Flight { peer, words, incoming: Some(n), _part: Vec::new() })?
        {
            take(peer, words);
        }
        Ok(true)
    }

    /// Keeps a message that is under way; returns one that needs no more, as MPI's short ones do.
    fn fly(
        &mut self,
        mut request: ffi::MPI_Request,
        flight: Flight,
    ) -> Result<Option<Flight>, Failure> {
        let (mut flag, mut status) = (0, MaybeUninit::uninit());
        // SAFETY: the flight holds the memory of the request. The status is not read.
        let tested = unsafe { ffi::MPI_Test(&mut request, &mut flag, status.as_mut_ptr()) };
        if flag == 0 || tested != ffi::MPI_SUCCESS as c_int {
            self.requests.push(request);
            self.flights.push(flight);
            return check("MPI_Test", tested).map(|()| None);
        }
        Ok(Some(flight.landed()))
    }

    /// Removes what is complete; what came goes to `take`.
    fn complete(&mut self, take: &mut impl FnMut(Rank, Vec<f32>)) -> Result<bool, Failure> {
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
        // None that was not complete before is left to ask for: `MPI_UNDEFINED` is below 0.
        let n_completed = usize::try_from(n_completed).unwrap_or(0);
        self.completed.truncate(n_completed);
        self.completed.sort_unstable_by_key(|index| std::cmp::Reverse(*index));
        for index in &self.completed {
            self.requests.swap_remove(*index as usize);
            let Flight { peer, words, incoming, .. } =
                self.flights.swap_remove(*index as usize).landed();
            if incoming.is_some() {
                take(peer, words);
            }
        }
        Ok(n_completed > 0)
    }

    /// Ends MPI: waits until all ranks do. Nothing may be under way.
    pub(crate) fn close(self) -> Result<(), Failure> {
        if !self.flights.is_empty() {
            return Err("messages are still under way".into());
        }
        // SAFETY: nothing is under way, and the wire is gone after this.
        check("MPI_Finalize", unsafe { ffi::MPI_Finalize() })
    }

    /// Ends all ranks at once.
    pub(crate) fn abort(&self, code: u8) {
        // SAFETY: MPI may be called. (It does not return.)
        unsafe { ffi::MPI_Abort(self.comm, code.into()) };
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        forget(std::mem::take(&mut self.flights)); // see above
    }
}
