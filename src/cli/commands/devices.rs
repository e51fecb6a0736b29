//! `chimera devices`: lists the names for `--device` on this machine.

use anyhow::Result;
use clap::Args;

use crate::device::available;

/// Lists the devices of this machine that this build can train on
#[derive(Args)]
pub(crate) struct Devices {}

impl Devices {
    pub(crate) fn run(self) -> Result<()> {
        crate::cli::parts::terminal::console::print(available().join("\n"))
    }
}
