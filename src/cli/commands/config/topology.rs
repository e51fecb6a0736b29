//! `chimera config topology`: prints a preset as a file to change.

use anyhow::Result;
use chimera_core::analyze::links::{PRESETS, TopologyPreset};
use clap::Args;

use crate::cli::parts::schedule::costs::whole_in;
use crate::cli::parts::terminal::console::print;

/// Prints a preset of `--topology` as JSON, to adapt to a machine
#[derive(Args)]
pub(super) struct PrintTopology {
    /// Preset: two-level, rail, pcie, ethernet or aries
    #[arg(value_parser = preset)]
    preset: &'static TopologyPreset,
    /// Number of ranks, W x D
    #[arg(long, value_name = "COUNT", value_parser = whole_in(1..=8192))]
    ranks: u32,
    /// Ranks of a node [default: as the preset]
    #[arg(long, value_name = "R", value_parser = whole_in(1..=8192))]
    ranks_per_node: Option<u32>,
}

fn preset(name: &str) -> Result<&'static TopologyPreset, String> {
    let names = || PRESETS.iter().map(|preset| preset.name).collect::<Vec<_>>().join(", ");
    TopologyPreset::named(name).ok_or_else(|| format!("choose one of {}", names()))
}

impl PrintTopology {
    pub(super) fn run(self) -> Result<()> {
        let of_node = self.ranks_per_node.map(|n| n as usize);
        print(self.preset.topology(self.ranks as usize, of_node).to_json())
    }
}
