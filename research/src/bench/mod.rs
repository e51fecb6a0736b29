//! Measurements, by name.

mod checkpoint;
mod mpi;
mod schedule;
mod train;
mod wgpu;

use anyhow::Result;

/// Subject of a measurement.
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    /// Tokens per second of training, compared with PyTorch's with --peer
    Train(train::Args),
    /// The MPI transport: messages and sums compared with plain MPI's, and steps compared with
    /// their ops
    Mpi,
    /// Time to generate, prove and simulate Chimera up to ten million ops
    Schedule,
    /// Time that a checkpoint after every step adds to training
    Checkpoint(checkpoint::Args),
    /// Matrix products and training on an adapter of wgpu
    Wgpu(wgpu::Args),
}

impl Bench {
    /// Measures and prints the result.
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Bench::Train(args) => train::run(&args),
            Bench::Mpi => mpi::run(),
            Bench::Schedule => schedule::run(),
            Bench::Checkpoint(args) => checkpoint::run(&args),
            Bench::Wgpu(args) => wgpu::run(&args),
        }
    }
}
