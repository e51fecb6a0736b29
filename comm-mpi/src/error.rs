//! Error texts of MPI.

use std::ffi::c_int;

use mpi::ffi;

/// MPI's text for a failed call.
pub(crate) type Failure = String;

/// Returns an error if a call failed.
pub(crate) fn check(call: &str, code: c_int) -> Result<(), Failure> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let (mut bytes, mut n) = (vec![0u8; ffi::MPI_MAX_ERROR_STRING as usize + 1], 0);
    // SAFETY: there is room for the longest text.
    unsafe { ffi::MPI_Error_string(code, bytes.as_mut_ptr().cast(), &mut n) };
    bytes.truncate(usize::try_from(n).unwrap_or(0));
    let words = String::from_utf8_lossy(&bytes);
    Err(format!("{call}: {}", words.trim_end_matches(['\0', '\n'])))
}
