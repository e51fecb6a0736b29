//! What MPI says in words: of its failures, and of itself.

use std::ffi::{c_char, c_int};

use mpi_sys as ffi;

/// What MPI refused, in its words.
pub(crate) type Failure = String;

/// An error if MPI says that a call failed.
pub(crate) fn check(call: &str, code: c_int) -> Result<(), Failure> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let words = text(ffi::MPI_MAX_ERROR_STRING as usize, |to, n| unsafe {
        // SAFETY: there is room for the longest.
        ffi::MPI_Error_string(code, to, n)
    });
    Err(format!("{call}: {words}"))
}

/// The library in words.
pub(crate) fn library() -> String {
    // SAFETY: reads a constant.
    let most = unsafe { ffi::RSMPI_MAX_LIBRARY_VERSION_STRING };
    text(most as usize, |to, n| unsafe {
        // SAFETY: there is room for the longest.
        ffi::MPI_Get_library_version(to, n)
    })
}

/// The text of at most `most` bytes that `write` writes.
fn text(most: usize, write: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> String {
    let (mut bytes, mut n) = (vec![0u8; most + 1], 0);
    write(bytes.as_mut_ptr().cast(), &mut n);
    bytes.truncate(usize::try_from(n).unwrap_or(0));
    String::from_utf8_lossy(&bytes).trim_end_matches(['\0', '\n']).to_string()
}
