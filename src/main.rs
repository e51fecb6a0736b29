//! The `chimera` command.

mod commands;
mod exit;

/// Buffers of a training step are large and short-lived; the system's allocator gives each back to the
/// kernel and pays for its pages again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    #[cfg(feature = "nccl")]
    settle_cuda();
    match commands::Cli::read().run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}

/// What CUDA and NCCL read when they are opened, unless the environment says otherwise. Kernels of NCCL wait on
/// the device for those of other ranks, so nothing that these wait for may come behind them: neither in a
/// hardware queue that several streams share, nor because a kernel is loaded at its first use. And ranks that
/// are threads must not read each other's memory, which their GPUs do not open to one another.
#[cfg(feature = "nccl")]
#[expect(unsafe_code, reason = "the environment is the one way to say it")]
fn settle_cuda() {
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
