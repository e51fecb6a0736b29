//! Measurements, by name.

use anyhow::Result;

use crate::bench_train;

/// What to measure.
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    /// Tokens per second of training, beside PyTorch's with --peer
    Train(bench_train::Args),
}

impl Bench {
    /// Measures and prints.
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Bench::Train(args) => bench_train::run(&args),
        }
    }
}
