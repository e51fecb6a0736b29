//! Measurements, by name.

use anyhow::Result;

use crate::{bench_mpi, bench_schedule, bench_train};

/// What to measure.
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    /// Tokens per second of training, beside PyTorch's with --peer
    Train(bench_train::Args),
    /// Latency and bandwidth of the transport over MPI beside plain MPI's
    Mpi,
    /// Time to generate, prove and simulate Chimera up to ten million ops
    Schedule,
}

impl Bench {
    /// Measures and prints.
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Bench::Train(args) => bench_train::run(&args),
            Bench::Mpi => bench_mpi::run(),
            Bench::Schedule => bench_schedule::run(),
        }
    }
}
