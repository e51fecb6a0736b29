//! The `chimera` command.

mod commands;
mod exit;

use clap::Parser;

/// Buffers of a training step are large and short-lived; the system's allocator gives each back to the
/// kernel and pays for its pages again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    match commands::Cli::parse().run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}
