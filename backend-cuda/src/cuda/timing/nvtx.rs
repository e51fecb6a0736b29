//! Named ranges for profilers (Nsight Systems, Nsight Compute), through NVIDIA's library NVTX.
//!
//! NVTX passes ranges only to the library that a profiler names in `NVTX_INJECTION64_PATH`. Without
//! that variable it is not opened, and ranges cost nothing.

use std::env;
use std::ffi::{CString, c_char, c_int};
use std::fmt::Display;
use std::sync::OnceLock;

use libloading::Library;

use crate::folders::library_folders;

/// The variable that names a profiler's library to NVTX.
const INJECTION: &str = "NVTX_INJECTION64_PATH";
/// The file names of NVTX in CUDA 13 and before.
const NAMES: [&str; 2] = ["libnvtx3interop.so.1", "libnvToolsExt.so.1"];

/// The open NVTX library. Each thread has its own stack of ranges.
pub(crate) struct Nvtx {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
    _library: Library,
}

impl Nvtx {
    /// Returns the library, if a profiler listens and the library exists.
    pub(crate) fn found() -> Option<&'static Nvtx> {
        static FOUND: OnceLock<Option<Nvtx>> = OnceLock::new();
        let found = FOUND.get_or_init(|| env::var_os(INJECTION).and_then(|_| Nvtx::open()));
        found.as_ref()
    }

    fn open() -> Option<Nvtx> {
        let in_folders =
            library_folders().into_iter().flat_map(|folder| NAMES.map(|n| folder.join(n)));
        NAMES.map(Into::into).into_iter().chain(in_folders).find_map(|path| {
            // SAFETY: NVTX has no initialisers with effects; all versions have these types.
            unsafe {
                let library = Library::new(path).ok()?;
                let push = *library.get(b"nvtxRangePushA\0").ok()?;
                let pop = *library.get(b"nvtxRangePop\0").ok()?;
                Some(Nvtx { push, pop, _library: library })
            }
        })
    }

    /// Opens a range in this thread.
    pub(crate) fn push(&self, name: &dyn Display) {
        let name = CString::new(name.to_string()).unwrap_or_default(); // every push has its pop
        // SAFETY: the library is open, and copies the text.
        unsafe { (self.push)(name.as_ptr()) };
    }

    /// Closes the last range that this thread opened.
    pub(crate) fn pop(&self) {
        // SAFETY: the library is open. Without an open range the call does nothing.
        unsafe { (self.pop)() };
    }
}
