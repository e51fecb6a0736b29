//! The `chimera` command.

use std::ffi::c_long;

use libmimalloc_sys::{mi_option_set_default, mi_option_t};

/// Buffers of a training step are large and short-lived; the system's allocator gives each back to the
/// kernel and pays for its pages again. See [`keep_memory`].
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    keep_memory();
    if cfg!(feature = "nccl") {
        set_cuda_environment();
    }
    #[cfg(unix)]
    catch_file_size_limit();
    chimera::cli::main()
}

/// Makes a file that outgrows `ulimit -f` an error of writing, which is reported as any other, where its signal would
/// end the process without a word.
#[cfg(unix)]
fn catch_file_size_limit() {
    let caught = std::sync::Arc::default(); // nobody asks: the write fails too
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, caught);
}

/// Lets the allocator keep the memory that a step frees, for the next step. By default it gives back what was free
/// for a second, and each of its pages costs a fault when it is taken again. `MIMALLOC_PURGE_DELAY` says otherwise.
#[expect(unsafe_code, reason = "the allocator has no other interface to its options")]
fn keep_memory() {
    /// `mi_option_purge_delay` of mimalloc's header.
    const PURGE_DELAY: mi_option_t = 15;
    const NEVER: c_long = -1;
    // SAFETY: no other thread has been started, and the function ignores an option that does not exist.
    unsafe { mi_option_set_default(PURGE_DELAY, NEVER) };
}

/// What CUDA and NCCL read when they are opened, unless the environment says otherwise. Layers of NCCL wait on
/// the device for those of other ranks, so nothing that these wait for may come behind them: neither in a
/// hardware queue that several streams share, nor because a kernel is loaded at its first use. And ranks that
/// are threads must not read each other's memory, which their GPUs do not open to one another.
#[expect(unsafe_code, reason = "the environment is the one way to say it")]
fn set_cuda_environment() {
    let settings = [
        ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
        ("CUDA_MODULE_LOADING", "EAGER"),
        ("NCCL_P2P_DIRECT_DISABLE", "1"),
    ];
    for (name, value) in settings {
        if std::env::var_os(name).is_none() {
            // SAFETY: no other thread has been started.
            unsafe { std::env::set_var(name, value) };
        }
    }
}
