//! `chimera devices`: what `--device` can name on this machine.

use anyhow::Result;
use chimera::device::available;
use clap::Args;

/// Lists the devices of this machine that this build can train on
#[derive(Args)]
pub(crate) struct Devices {}

impl Devices {
    pub(crate) fn run(self) -> Result<()> {
        super::print(available().join("\n"))
    }
}
