//! A GPU emulated on the CPU, below the driver's interface: `cuda.cpp` is the driver, `nvrtc.cpp`
//! compiles the kernels' own text after `shim.h`, `cublas.cpp` multiplies, `nccl.cpp` carries
//! messages, and `nvtx.cpp` records ranges. So the tests cover all that runs on a real GPU: the
//! kernels, and every call around them.
//!
//! The emulation finds wrong numbers, missing elements, reads and writes outside of an allocation
//! or of its lifetime, streams that do not wait, forgotten barriers, and results that depend on the
//! order of threads. It says nothing about speed.

pub(crate) mod libraries;

use std::mem;
use std::path::Path;
use std::sync::OnceLock;

use chimera_backend_cuda::cuda::Cuda;
use chimera_backend_cuda::{Format, Gpu};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// Opens a stream of the GPU of this number. Its memory holds NaN before it is written.
pub(crate) fn gpu(ordinal: usize, format: Format) -> Gpu<Cuda> {
    load();
    let cuda = Cuda::new(ordinal, format).expect("the emulated GPU starts");
    Gpu::new(cuda).poisoned()
}

/// Opens the emulated libraries. Later requests for their names get them, not those of the machine.
pub(crate) fn load() {
    static LOADED: OnceLock<()> = OnceLock::new();
    LOADED.get_or_init(|| {
        let folder = libraries::folder(Path::new(env!("CARGO_TARGET_TMPDIR")));
        for library in libraries::all(&folder) {
            // SAFETY: the library is compiled from the project's own text, whose initialisers only
            // read settings and make tables.
            let opened = unsafe { Library::open(Some(&library), RTLD_NOW | RTLD_GLOBAL) };
            mem::forget(opened.unwrap_or_else(|e| panic!("{}: {e}", library.display())));
        }
    });
}
