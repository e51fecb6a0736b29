//! The place of this process among ranks over QUIC: by options, or by torchrun's variables.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clap::ValueHint::FilePath;

use crate::run::launch::Launch;

/// Ranks with `--transport quic`. torchrun sets the first three by itself.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Ranks over QUIC")]
pub(crate) struct ClusterArgs {
    /// Number of this rank, from 0 [default: RANK]
    #[arg(long, value_name = "RANK")]
    pub(super) rank: Option<u32>,
    /// Number of ranks [default: WORLD_SIZE]
    #[arg(long, value_name = "COUNT")]
    pub(super) world: Option<u32>,
    /// Host and UDP port of rank 0 [default: MASTER_ADDR:MASTER_PORT]
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) rendezvous: Option<String>,
    /// File with the secret that all ranks share [default: the text in CHIMERA_TICKET]
    #[arg(long, value_name = "FILE", value_hint = FilePath)]
    pub(super) ticket: Option<PathBuf>,
}

impl ClusterArgs {
    /// Returns true if any of the options is given.
    pub(crate) fn is_said(&self) -> bool {
        let ClusterArgs { rank, world, rendezvous, ticket } = self;
        rank.is_some() || world.is_some() || rendezvous.is_some() || ticket.is_some()
    }

    /// Refuses these options with another transport.
    pub(crate) fn refuse_unless_quic(&self) -> Result<()> {
        ensure!(
            !self.is_said(),
            "--rank, --world, --rendezvous and --ticket are for ranks over QUIC: add --transport quic"
        );
        Ok(())
    }

    /// Makes the place of this process known to all that ask for its launch.
    pub(crate) fn declare(&self) -> Result<()> {
        self.launch()?.declare();
        Ok(())
    }

    pub(super) fn launch(&self) -> Result<Launch> {
        let torchrun = Launch::torchrun().filter(|_| self.rank.is_none() && self.world.is_none());
        if let Some(launch) = torchrun {
            return Ok(launch);
        }
        let missing = "--transport quic needs the place of this rank: give --rank and --world, or start it with torchrun";
        let (rank, n_ranks) = (self.rank.context(missing)?, self.world.context(missing)?);
        ensure!(
            rank < n_ranks,
            "--rank {rank}: --world {n_ranks} has ranks 0 to {}",
            n_ranks.saturating_sub(1)
        );
        let (launcher, variable) = ("the command line", "--world");
        Ok(Launch { launcher, variable, n_ranks, rank, n_local: None, local: None })
    }
}
