//! MPI's failures in words.

use std::ffi::c_int;

use mpi::ffi;

/// What MPI refused, in its words.
pub(crate) type Failure = String;

/// An error if MPI says that a call failed.
pub(crate) fn check(call: &str, code: c_int) -> Result<(), Failure> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let (mut bytes, mut n) = (vec![0u8; ffi::MPI_MAX_ERROR_STRING as usize + 1], 0);
    // SAFETY: there is room for the longest.
    unsafe { ffi::MPI_Error_string(code, bytes.as_mut_ptr().cast(), &mut n) };
    bytes.truncate(usize::try_from(n).unwrap_or(0));
    let words = String::from_utf8_lossy(&bytes);
    Err(format!("{call}: {}", words.trim_end_matches(['\0', '\n'])))
}
