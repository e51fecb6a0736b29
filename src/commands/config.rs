//! `chimera config`: what a run would be trained with.

use anyhow::Result;
use chimera::settings::Layers;
use clap::{Args, Subcommand};

use super::print;

/// Shows the settings of a run
#[derive(Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Show(Show),
}

/// Prints every key with its value and where it came from, as TOML that reads back
#[derive(Args)]
struct Show {
    #[command(flatten)]
    layers: Box<Layers>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

impl Config {
    pub(crate) fn run(self) -> Result<()> {
        let Command::Show(show) = self.command;
        let config = show.layers.resolve()?;
        print(if show.json { format!("{:#}", config.to_json()) } else { config.to_toml() })
    }
}
