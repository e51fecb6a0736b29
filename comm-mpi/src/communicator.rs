//! Communicators that outlive the death of their ranks, and what is done with them between two meetings.
//!
//! What the `unsafe` blocks rely on, beside what [`endpoint`](crate::endpoint) says: between two meetings one thread
//! alone calls MPI. Pointers are to locals, which are read after a call that MPI says was successful.

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

/// A communicator under ULFM. Its failures are returned, and its ranks may be dead.
#[derive(Clone, Copy)]
pub(crate) struct Communicator {
    pub(crate) raw: ffi::MPI_Comm,
    ulfm: Ulfm,
}

// SAFETY: handles of MPI belong to the process, not to a thread.
unsafe impl Send for Communicator {}

impl Communicator {
    /// A communicator of all processes that were started with this one.
    pub(crate) fn world(ulfm: Ulfm) -> Result<Communicator, Failure> {
        // SAFETY: a constant, once MPI has started.
        Communicator::of(unsafe { ffi::RSMPI_COMM_WORLD }, ulfm)
    }

    /// Between this process and those that spawned it, if it was spawned.
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

    /// What `make` makes of this one.
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

    /// This process's rank in it.
    pub(crate) fn rank(&self) -> Result<usize, Failure> {
        let mut rank = 0;
        // SAFETY: see above.
        check("MPI_Comm_rank", unsafe { ffi::MPI_Comm_rank(self.raw, &mut rank) })?;
        Ok(rank as usize)
    }

    /// Number of its ranks.
    pub(crate) fn size(&self) -> Result<usize, Failure> {
        let mut size = 0;
        // SAFETY: see above.
        check("MPI_Comm_size", unsafe { ffi::MPI_Comm_size(self.raw, &mut size) })?;
        Ok(size as usize)
    }

    /// A communicator of the same ranks with messages of their own.
    pub(crate) fn duplicate(&self) -> Result<Communicator, Failure> {
        // SAFETY: see above.
        self.make("MPI_Comm_dup", |to| unsafe { ffi::MPI_Comm_dup(self.raw, to) })
    }

    /// Makes every call on it fail, on all ranks, but for [`shrink`](Self::shrink) and [`agree`](Self::agree).
    pub(crate) fn revoke(&self) {
        // SAFETY: see above. It fails if it is revoked already.
        unsafe { (self.ulfm.revoke)(self.raw) };
    }

    pub(crate) fn is_revoked(&self) -> bool {
        let mut flag = 0;
        // SAFETY: see above.
        let code = unsafe { (self.ulfm.is_revoked)(self.raw, &mut flag) };
        check("MPIX_Comm_is_revoked", code).is_ok() && flag != 0
    }

    /// The first rank that is known to be dead.
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

    /// Lets MPI proceed, so that it learns of deaths.
    pub(crate) fn look(&self) {
        let (mut flag, mut status) = (0, MaybeUninit::uninit());
        // SAFETY: see above. Its failure is known to the caller, and the status is not read.
        unsafe {
            let (from, to) = (ffi::RSMPI_ANY_SOURCE, status.as_mut_ptr());
            ffi::MPI_Iprobe(from, 0, self.raw, &mut flag, to);
        }
    }

    /// A communicator of the ranks that live, in the same order. All that live call it, however dead or revoked this one is.
    pub(crate) fn shrink(&self) -> Result<Communicator, Failure> {
        // SAFETY: see above.
        self.make("MPIX_Comm_shrink", |to| unsafe { (self.ulfm.shrink)(self.raw, to) })
    }

    /// What all ranks that live have in common of their bits, and whether no death was met.
    pub(crate) fn agree(&self, bits: c_int) -> (c_int, bool) {
        let mut bits = bits;
        // SAFETY: see above. The bits are those of all that live whether it fails or not.
        let code = unsafe { (self.ulfm.agree)(self.raw, &mut bits) };
        (bits, check("MPIX_Comm_agree", code).is_ok())
    }

    /// Whether all ranks have what this one `has` or has not, and none has died.
    pub(crate) fn all_have(&self, has: bool) -> bool {
        let (all_have, no_death) = self.agree(has.into());
        all_have != 0 && no_death
    }

    /// What was made with all ranks of this one, if all have made it.
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

    /// By rank, whether it is one of `other`'s too.
    pub(crate) fn are_in(&self, other: &Communicator) -> Result<Vec<bool>, Failure> {
        let ranks = self.group()?.ranks_in(&other.group()?, self.size()?)?;
        Ok(ranks.iter().map(Option::is_some).collect())
    }

    /// A communicator of this process alone.
    pub(crate) fn alone(&self) -> Result<Communicator, Failure> {
        // SAFETY: a constant, once MPI has started.
        Communicator::of(unsafe { ffi::RSMPI_COMM_SELF }, self.ulfm)
    }

    /// Between these ranks and those that connect to the port of rank 0, which the others need not know.
    pub(crate) fn accept(&self, port: &Port) -> Result<Communicator, Failure> {
        let info = Info::new()?;
        // SAFETY: see above. A port's name ends with 0.
        self.make("MPI_Comm_accept", |to| unsafe {
            ffi::MPI_Comm_accept(port.0.as_ptr().cast(), info.0, 0, self.raw, to)
        })
    }

    /// Between these ranks and those that accept them at a port.
    pub(crate) fn connect(&self, port: &Port) -> Result<Communicator, Failure> {
        let info = Info::new()?;
        // SAFETY: see above. A port's name ends with 0.
        self.make("MPI_Comm_connect", |to| unsafe {
            ffi::MPI_Comm_connect(port.0.as_ptr().cast(), info.0, 0, self.raw, to)
        })
    }

    /// Starts `n` more processes of this program, with the same arguments: all ranks call it.
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
        // SAFETY: see above. All strings end with 0, as do the arguments, and outlive the calls; there is a code for each
        // of `n` processes.
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

    /// Joins both sides of a communicator between two groups, `last` this one behind the other.
    pub(crate) fn merge(&self, last: bool) -> Result<Communicator, Failure> {
        self.make("MPI_Intercomm_merge", |to| {
            // SAFETY: see above.
            unsafe { ffi::MPI_Intercomm_merge(self.raw, last.into(), to) }
        })
    }

    /// Gives all ranks the numbers of rank 0.
    pub(crate) fn broadcast(&self, numbers: &mut [i32]) -> Result<(), Failure> {
        // SAFETY: see above.
        check("MPI_Bcast", unsafe {
            let (to, n) = (numbers.as_mut_ptr().cast(), numbers.len() as c_int);
            ffi::MPI_Bcast(to, n, ffi::RSMPI_INT32_T, 0, self.raw)
        })
    }

    /// Gives all ranks the port of rank 0.
    pub(crate) fn broadcast_port(&self, port: &mut Port) -> Result<(), Failure> {
        // SAFETY: see above. All names of ports are equally long.
        check("MPI_Bcast", unsafe {
            let (to, n) = (port.0.as_mut_ptr().cast(), port.0.len() as c_int);
            ffi::MPI_Bcast(to, n, ffi::RSMPI_UINT8_T, 0, self.raw)
        })
    }

    /// A communicator of the same ranks in another order, in which this process wants to be the `nth`.
    pub(crate) fn reorder(&self, nth: usize) -> Result<Communicator, Failure> {
        self.make("MPI_Comm_split", |to| {
            // SAFETY: see above.
            unsafe { ffi::MPI_Comm_split(self.raw, 0, nth as c_int, to) }
        })
    }

    /// Lets go of one by which no message goes. MPI would wait at its end for the ranks of one that came of a spawn.
    pub(crate) fn free(mut self) {
        // SAFETY: nobody has the handle any more. A failure leaves it as it is.
        unsafe { ffi::MPI_Comm_free(&mut self.raw) };
    }

    /// Ends all its processes at once.
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
