//! `chimera devices`: what `--device` can name on this machine.

use crate::device::available;
use anyhow::Result;
use clap::Args;

/// Lists the devices of this machine that this build can train on
#[derive(Args)]
pub(crate) struct Devices {}

impl Devices {
    pub(crate) fn run(self) -> Result<()> {
        crate::cli::parts::console::print(available().join("\n"))
    }
}
