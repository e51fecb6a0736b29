//! Measurements, by name.

use anyhow::Result;

use crate::{bench_checkpoint, bench_mpi, bench_schedule, bench_train, bench_wgpu};

/// What to measure.
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    /// Tokens per second of training, beside PyTorch's with --peer
    Train(bench_train::Args),
    /// The transport over MPI: messages and sums beside plain MPI's, and steps beside their ops alone
    Mpi,
    /// Time to generate, prove and simulate Chimera up to ten million ops
    Schedule,
    /// Time that a checkpoint after every step adds to training
    Checkpoint(bench_checkpoint::Args),
    /// Matrix products and training on an adapter of wgpu
    Wgpu(bench_wgpu::Args),
}

impl Bench {
    /// Measures and prints.
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Bench::Train(args) => bench_train::run(&args),
            Bench::Mpi => bench_mpi::run(),
            Bench::Schedule => bench_schedule::run(),
            Bench::Checkpoint(args) => bench_checkpoint::run(&args),
            Bench::Wgpu(args) => bench_wgpu::run(&args),
        }
    }
}
