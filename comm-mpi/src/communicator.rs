//! Communicators that outlive the death of their ranks, and calls on them between two meetings.
//!
//! The `unsafe` blocks rely on one more thing than those of [`endpoint`](crate::endpoint): between
//! two meetings only one thread calls MPI. Pointers are to locals, which are read only after a
//! successful call.

mod parts;

use std::env::{args_os, current_dir, current_exe};
use std::ffi::{CString, OsString, c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use mpi::ffi;

pub(crate) use self::parts::Port;
use self::parts::{Group, Info};
use crate::error::{Failure, check};
use crate::ulfm::Ulfm;

/// A communicator under ULFM. Its failures are returned as errors, and its ranks may be dead.
#[derive(Clone, Copy)]
pub(crate) struct Communicator {
    pub(crate) raw: ffi::MPI_Comm,
    ulfm: Ulfm,
}

// SAFETY: handles of MPI belong to the process, not to a thread.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Returns a communicator of all processes that were started with this one.
    pub(crate) fn world(ulfm: Ulfm) -> Result<Communicator, Failure> {
        // SAFETY: a constant, once MPI has started.
        Communicator::of(unsafe { ffi::RSMPI_COMM_WORLD }, ulfm)
    }

    /// Returns the intercommunicator with the processes that spawned this one, if it was spawned.
    pub(crate) fn parent(ulfm: Ulfm) -> Result<Option<Communicator>, Failure> {
        let mut parent = MaybeUninit::uninit();
        // SAFETY: see above.
        let (parent, none) = unsafe {
            check("MPI_Comm_get_parent", ffi::MPI_Comm_get_parent(parent.as_mut_ptr()))?;
            (parent.assume_init(), ffi::RSMPI_COMM_NULL)
        };
        (parent != none).then(|| Communicator::of(parent, ulfm)).transpose()
    }

    fn of(raw: ffi::MPI_Comm, ulfm: Ulfm) -> Result<Communicator, Failure> {
        // SAFETY: the handle is a communicator's, and the other one a constant.
        check("MPI_Comm_set_errhandler", unsafe {
            ffi::MPI_Comm_set_errhandler(raw, ffi::RSMPI_ERRORS_RETURN)
        })?;
        Ok(Communicator { raw, ulfm })
    }

    /// Calls `make`, and wraps the communicator that it writes.
    fn make(
        &self,
        call: &str,
        make: impl FnOnce(*mut ffi::MPI_Comm) -> c_int,
    ) -> Result<Communicator, Failure> {
        let mut made = MaybeUninit::uninit();
        check(call, make(made.as_mut_ptr()))?;
        // SAFETY: see above.
        Communicator::of(unsafe { made.assume_init() }, self.ulfm)
    }

    pub(crate) fn rank(&self) -> Result<usize, Failure> {
        let mut rank = 0;
        // SAFETY: see above.
        check("MPI_Comm_rank", unsafe { ffi::MPI_Comm_rank(self.raw, &mut rank) })?;
        Ok(rank as usize)
    }

    pub(crate) fn size(&self) -> Result<usize, Failure> {
        let mut size = 0;
        // SAFETY: see above.
        check("MPI_Comm_size", unsafe { ffi::MPI_Comm_size(self.raw, &mut size) })?;
        Ok(size as usize)
    }

    /// Returns a communicator of the same ranks whose messages are separate.
    pub(crate) fn duplicate(&self) -> Result<Communicator, Failure> {
        // SAFETY: see above.
        self.make("MPI_Comm_dup", |to| unsafe { ffi::MPI_Comm_dup(self.raw, to) })
    }

    /// Makes all calls on it fail, except [`shrink`](Self::shrink) and [`agree`](Self::agree).
    pub(crate) fn revoke(&self) {
        // SAFETY: see above. The call fails if the communicator is revoked already.
        unsafe { (self.ulfm.revoke)(self.raw) };
    }

    pub(crate) fn is_revoked(&self) -> bool {
        let mut flag = 0;
        // SAFETY: see above.
        let code = unsafe { (self.ulfm.is_revoked)(self.raw, &mut flag) };
        check("MPIX_Comm_is_revoked", code).is_ok() && flag != 0
    }

    /// Returns the first rank that is known to be dead.
    pub(crate) fn first_dead(&self) -> Option<usize> {
        let mut group = MaybeUninit::uninit();
        // SAFETY: see above.
        let dead = unsafe {
            check("MPIX_Comm_failure_ack", (self.ulfm.failure_ack)(self.raw)).ok()?;
            let got = (self.ulfm.get_acked)(self.raw, group.as_mut_ptr());
            check("MPIX_Comm_failure_get_acked", got).ok()?;
            Group(group.assume_init())
        };
        let size = self.size().ok()?;
        let ranks = self.group().ok()?.ranks_in(&dead, size).ok()?;
        ranks.iter().position(Option::is_some)
    }

    /// Lets MPI make progress, so that it notices deaths.
    pub(crate) fn look(&self) {
        let (mut flag, mut status) = (0, MaybeUninit::uninit());
        // SAFETY: see above. The caller knows of its failures, and the status is not read.
        unsafe {
            let (from, to) = (ffi::RSMPI_ANY_SOURCE, status.as_mut_ptr());
            ffi::MPI_Iprobe(from, 0, self.raw, &mut flag, to);
        }
    }

    /// Returns a communicator of the living ranks in order. They call it even if it is revoked.
    pub(crate) fn shrink(&self) -> Result<Communicator, Failure> {
        // SAFETY: see above.
        self.make("MPIX_Comm_shrink", |to| unsafe { (self.ulfm.shrink)(self.raw, to) })
    }

    /// Returns the bitwise AND of `bits` over all living ranks, and true if no death was met.
    pub(crate) fn agree(&self, bits: c_int) -> (c_int, bool) {
        let mut bits = bits;
        // SAFETY: see above. The bits are those of all living ranks whether it fails or not.
        let code = unsafe { (self.ulfm.agree)(self.raw, &mut bits) };
        (bits, check("MPIX_Comm_agree", code).is_ok())
    }

    /// Returns true if `has` is true on all ranks and none has died.
    pub(crate) fn all_have(&self, has: bool) -> bool {
        let (all_have, no_death) = self.agree(has.into());
        all_have != 0 && no_death
    }

    /// Returns the communicator that was made with all ranks, if all of them have made it.
    pub(crate) fn on_all(
        &self,
        made: Result<Communicator, Failure>,
    ) -> Result<Communicator, Failure> {
        match (self.all_have(made.is_ok()), made) {
            (false, Ok(made)) => {
                made.revoke();
                Err("another rank has died, or failed".into())
            }
            (_, made) => made,
        }
    }

    /// Returns, by rank, whether it is also a rank of `other`.
    pub(crate) fn are_in(&self, other: &Communicator) -> Result<Vec<bool>, Failure> {
        let ranks = self.group()?.ranks_in(&other.group()?, self.size()?)?;
        Ok(ranks.iter().map(Option::is_some).collect())
    }

    /// Returns a communicator of only this process.
    pub(crate) fn alone(&self) -> Result<Communicator, Failure> {
        // SAFETY: a constant, once MPI has started.
        Communicator::of(unsafe { ffi::RSMPI_COMM_SELF }, self.ulfm)
    }

    /// Returns an intercommunicator with the ranks that connect to the port of rank 0.
    pub(crate) fn accept(&self, port: &Port) -> Result<Communicator, Failure> {
        let info = Info::new()?;
        // SAFETY: see above. A port's name ends with 0.
        self.make("MPI_Comm_accept", |to| unsafe {
            ffi::MPI_Comm_accept(port.0.as_ptr().cast(), info.0, 0, self.raw, to)
        })
    }

    /// Connects these ranks to those that accept them at a port. Returns the intercommunicator.
    pub(crate) fn connect(&self, port: &Port) -> Result<Communicator, Failure> {
        let info = Info::new()?;
        // SAFETY: see above. A port's name ends with 0.
        self.make("MPI_Comm_connect", |to| unsafe {
            ffi::MPI_Comm_connect(port.0.as_ptr().cast(), info.0, 0, self.raw, to)
        })
    }

    /// Starts `n` more processes of this program with the same arguments. All ranks call it.
    pub(crate) fn spawn(&self, n: usize) -> Result<Communicator, Failure> {
        let bytes = |word: OsString| {
            CString::new(word.into_encoded_bytes())
                .map_err(|e| format!("an argument cannot be passed on: {e}"))
        };
        let program = current_exe().map_err(|e| format!("this program has no name: {e}"))?;
        let program = bytes(program.into_os_string())?;
        let args = args_os().skip(1).map(bytes).collect::<Result<Vec<_>, _>>()?;
        let mut args: Vec<*mut c_char> = args.iter().map(|arg| arg.as_ptr().cast_mut()).collect();
        args.push(null_mut());
        let folder = current_dir().map_err(|e| format!("this program is in no folder: {e}"))?;
        let folder = bytes(folder.into_os_string())?;
        let info = Info::new()?;
        let mut codes = vec![0; n];
        // SAFETY: see above. All strings end with 0, as does the list of arguments, and they
        // outlive the calls. There is a code for each of `n` processes.
        unsafe {
            let set = ffi::MPI_Info_set(info.0, c"wdir".as_ptr(), folder.as_ptr());
            check("MPI_Info_set", set)?;
            self.make("MPI_Comm_spawn", |to| {
                let (program, args) = (program.as_ptr(), args.as_mut_ptr());
                let (n, codes) = (n as c_int, codes.as_mut_ptr());
                ffi::MPI_Comm_spawn(program, args, n, info.0, 0, self.raw, to, codes)
            })
        }
    }

    /// Merges both groups of an intercommunicator, this one after the other if `last`.
    pub(crate) fn merge(&self, last: bool) -> Result<Communicator, Failure> {
        self.make("MPI_Intercomm_merge", |to| {
            // SAFETY: see above.
            unsafe { ffi::MPI_Intercomm_merge(self.raw, last.into(), to) }
        })
    }

    /// Broadcasts the numbers of rank 0.
    pub(crate) fn broadcast(&self, numbers: &mut [i32]) -> Result<(), Failure> {
        // SAFETY: see above.
        check("MPI_Bcast", unsafe {
            let (to, n) = (numbers.as_mut_ptr().cast(), numbers.len() as c_int);
            ffi::MPI_Bcast(to, n, ffi::RSMPI_INT32_T, 0, self.raw)
        })
    }

    pub(crate) fn broadcast_port(&self, port: &mut Port) -> Result<(), Failure> {
        // SAFETY: see above. All port names have the same length.
        check("MPI_Bcast", unsafe {
            let (to, n) = (port.0.as_mut_ptr().cast(), port.0.len() as c_int);
            ffi::MPI_Bcast(to, n, ffi::RSMPI_UINT8_T, 0, self.raw)
        })
    }

    /// Returns a communicator of the same ranks, reordered: this process asks for place `nth`.
    pub(crate) fn reorder(&self, nth: usize) -> Result<Communicator, Failure> {
        self.make("MPI_Comm_split", |to| {
            // SAFETY: see above.
            unsafe { ffi::MPI_Comm_split(self.raw, 0, nth as c_int, to) }
        })
    }

    /// Frees a communicator without messages. A spawned one would hold up `MPI_Finalize`.
    pub(crate) fn free(mut self) {
        // SAFETY: nobody has the handle any more. A failure leaves the communicator as it is.
        unsafe { ffi::MPI_Comm_free(&mut self.raw) };
    }

    pub(crate) fn abort(&self, code: u8) {
        // SAFETY: see above.
        unsafe { ffi::MPI_Abort(self.raw, code.into()) };
    }

    fn group(&self) -> Result<Group, Failure> {
        let mut group = MaybeUninit::uninit();
        // SAFETY: see above.
        unsafe {
            check("MPI_Comm_group", ffi::MPI_Comm_group(self.raw, group.as_mut_ptr()))?;
            Ok(Group(group.assume_init()))
        }
    }
}
