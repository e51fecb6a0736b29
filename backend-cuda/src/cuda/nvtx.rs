//! Named ranges for profilers (Nsight Systems, Nsight Compute), by NVIDIA's library NVTX.
//!
//! NVTX hands ranges to the library that a profiler names in `NVTX_INJECTION64_PATH`, and to nobody else. Without that
//! variable it is not opened, and ranges cost nothing.

use std::env;
use std::ffi::{CString, c_char, c_int};
use std::fmt::Display;
use std::sync::OnceLock;

use libloading::Library;

use super::super::folders::library_folders;

/// What names a profiler's library to NVTX.
const INJECTION: &str = "NVTX_INJECTION64_PATH";
/// The names of NVTX in CUDA 13, and before.
const NAMES: [&str; 2] = ["libnvtx3interop.so.1", "libnvToolsExt.so.1"];

/// NVTX, open. Each thread has a stack of ranges of its own.
pub(super) struct Nvtx {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
    _library: Library,
}

impl Nvtx {
    /// The library, if a profiler listens and there is one.
    pub(super) fn found() -> Option<&'static Nvtx> {
        static FOUND: OnceLock<Option<Nvtx>> = OnceLock::new();
        let found = FOUND.get_or_init(|| env::var_os(INJECTION).and_then(|_| Nvtx::open()));
        found.as_ref()
    }

    fn open() -> Option<Nvtx> {
        let in_folders =
            library_folders().into_iter().flat_map(|folder| NAMES.map(|n| folder.join(n)));
        NAMES.map(Into::into).into_iter().chain(in_folders).find_map(|path| {
            // SAFETY: NVTX has no initialisers that do anything, and the functions have had these types in all its versions.
            unsafe {
                let library = Library::new(path).ok()?;
                let push = *library.get(b"nvtxRangePushA\0").ok()?;
                let pop = *library.get(b"nvtxRangePop\0").ok()?;
                Some(Nvtx { push, pop, _library: library })
            }
        })
    }

    /// Opens a range in this thread.
    pub(super) fn push(&self, name: &dyn Display) {
        let name = CString::new(name.to_string()).unwrap_or_default(); // every push has its pop
        // SAFETY: the library is open, and copies the text.
        unsafe { (self.push)(name.as_ptr()) };
    }

    /// Closes the range that this thread has opened last.
    pub(super) fn pop(&self) {
        // SAFETY: the library is open; without an open range it does nothing.
        unsafe { (self.pop)() };
    }
}
