//! `chimera config`: shows and checks the settings of a run.

mod topology;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};

use self::topology::PrintTopology;
use crate::cli::parts::terminal::args::LayerArgs;
use crate::cli::parts::terminal::console::{print, tell, warn};
use crate::plan::{CONFLICTS, Conflict, Plan, layout_of};
use crate::run::check_unread;
use crate::run::outside::{OnDisk, must_know_vocab};
use crate::settings::{Layers, Settings, markdown};

/// The most files that a warning lists.
const N_NAMED: usize = 8;

/// Shows or checks the settings of a run
#[derive(Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Show(Show),
    Check(Check),
    Options(Options),
    Topology(PrintTopology),
}

/// Prints the table of all options as Markdown
#[derive(Args)]
struct Options {}

/// Prints every key with its value and its origin, as TOML
#[derive(Args)]
struct Show {
    #[command(flatten)]
    layers: Box<LayerArgs>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Checks settings, schedule and memory without data
///
/// The exit code is that of the last file that is refused.
#[derive(Args)]
struct Check {
    /// TOML files, as `chimera train --config` takes them
    #[arg(value_name = "FILE", required_unless_present = "conflicts")]
    files: Vec<PathBuf>,
    /// List the options that exclude each other, with reasons
    #[arg(long)]
    conflicts: bool,
}

impl Config {
    pub(crate) fn run(self) -> Result<()> {
        match self.command {
            Command::Show(show) => show.run(),
            Command::Check(check) => check.run(),
            Command::Options(Options {}) => print(markdown()),
            Command::Topology(topology) => topology.run(),
        }
    }
}

impl Show {
    fn run(self) -> Result<()> {
        let config = self.layers.resolve_by_recipe(&OnDisk)?;
        let layout = layout_of(&config);
        print(if self.json {
            format!("{:#}", config.to_json(layout.as_ref()))
        } else {
            config.to_open_toml(layout.as_ref())
        })
    }
}

impl Check {
    fn run(self) -> Result<()> {
        if self.conflicts {
            for Conflict { options, sentence, .. } in CONFLICTS {
                print(format!("{}: {sentence}", options.join(", ")))?;
            }
        }
        let mut outcome = Ok(());
        for file in &self.files {
            match verdict(file) {
                Ok(line) => print(line)?,
                Err(refusal) => {
                    if let Err(earlier) = std::mem::replace(&mut outcome, Err(refusal)) {
                        tell(format_args!("error: {earlier:#}"));
                    }
                }
            }
        }
        outcome
    }
}

/// Describes a valid file.
fn verdict(file: &Path) -> Result<String> {
    let layers = Layers { config: Some(file.to_path_buf()), settings: Settings::default() };
    let config = layers.resolve_by_recipe(&OnDisk)?;
    let (width, depth) = (config.schedule.width, config.schedule.depth);
    let missing: Vec<_> = config.data.files.iter().filter(|data| !data.exists()).collect();
    if !missing.is_empty() {
        let names = missing.iter().take(N_NAMED).map(|data| data.display().to_string());
        let names = names.collect::<Vec<_>>().join(", ");
        let more = match missing.len().saturating_sub(N_NAMED) {
            0 => String::new(),
            n => format!(", and {n} more"),
        };
        warn(&format!("{}: there is no {names}{more}", file.display()));
    }
    if let Err(unknown) = must_know_vocab(&config) {
        warn(&format!("{unknown}; the figures are for vocab {}", config.model.vocab));
    }
    let place = || file.display().to_string();
    let plan = Plan::make(config).with_context(place)?;
    check_unread(&plan).with_context(place)?;
    Ok(format!(
        "{}: sound: {} on {width} x {depth} worker(s), proven with {} message(s) per channel; layout \
         {}; in Megatron's letters {}; {} parameters; all ranks together need {}",
        file.display(),
        plan.program().schedule(),
        plan.program().channel_bound(),
        plan.layout(),
        plan.layout().to_megatron(),
        plan.model().n_params(),
        plan.need(),
    ))
}
