//! MPI handles from which communicators are made.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use mpi::ffi;

use crate::error::{Failure, check};

/// Hints to MPI.
pub(super) struct Info(pub(super) ffi::MPI_Info);

impl Info {
    pub(super) fn new() -> Result<Info, Failure> {
        let mut info = MaybeUninit::uninit();
        // SAFETY: the pointer is to a local, which is read after a successful call.
        unsafe {
            check("MPI_Info_create", ffi::MPI_Info_create(info.as_mut_ptr()))?;
            Ok(Info(info.assume_init()))
        }
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle.
        unsafe { ffi::MPI_Info_free(&mut self.0) };
    }
}

/// The name of a port at which processes of different origin connect.
pub(crate) struct Port(pub(super) Vec<u8>);

impl Port {
    /// Returns an empty name, in a buffer that can hold the longest.
    pub(crate) fn none() -> Port {
        Port(vec![0; ffi::MPI_MAX_PORT_NAME as usize + 1])
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.first() == Some(&0)
    }

    pub(crate) fn open() -> Result<Port, Failure> {
        let (mut port, info) = (Port::none(), Info::new()?);
        // SAFETY: there is room for the longest name.
        check("MPI_Open_port", unsafe { ffi::MPI_Open_port(info.0, port.0.as_mut_ptr().cast()) })?;
        Ok(port)
    }

    /// Closes a port that this process has opened.
    pub(crate) fn close(self) {
        // SAFETY: the name ends with 0. A port that stays open harms nobody.
        unsafe { ffi::MPI_Close_port(self.0.as_ptr().cast()) };
    }
}

/// An ordered group of processes.
pub(super) struct Group(pub(super) ffi::MPI_Group);

impl Group {
    /// Returns the rank in `other` of each of the `n` processes.
    pub(super) fn ranks_in(&self, other: &Group, n: usize) -> Result<Vec<Option<c_int>>, Failure> {
        let ranks: Vec<c_int> = (0..n as c_int).collect();
        let mut found = vec![0; n];
        // SAFETY: both arrays have `n` numbers.
        let undefined = unsafe {
            let (to, size) = (found.as_mut_ptr(), n as c_int);
            let translated =
                ffi::MPI_Group_translate_ranks(self.0, size, ranks.as_ptr(), other.0, to);
            check("MPI_Group_translate_ranks", translated)?;
            ffi::RSMPI_UNDEFINED
        };
        Ok(found.into_iter().map(|rank| (rank != undefined).then_some(rank)).collect())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle.
        unsafe { ffi::MPI_Group_free(&mut self.0) };
    }
}
