//! The subcommands, one file each, and what several of them share: the `shape`, `costs`, the
//! `network`, the `entry` of a comparison.

mod checkpoint;
mod comm;
mod compare;
mod config;
mod costs;
mod devices;
#[cfg(feature = "mpi")]
mod ends;
mod entry;
mod eval;
mod examples;
mod export;
mod export_model;
mod gallery;
mod generate;
mod import;
mod model;
mod network;
mod outcome;
mod plan;
mod prepare;
mod progress;
#[cfg(feature = "mpi")]
mod ranks;
#[cfg(not(feature = "mpi"))]
#[path = "no_ranks.rs"]
mod ranks;
mod schedule;
mod scheduled;
mod selftest;
mod shape;
mod shell;
mod simulate;
mod slurm;
#[cfg(all(feature = "mpi", unix, debug_assertions))]
mod strike;
mod top;
mod train;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use chimera::core::notation::significant;
use chimera::files;
use chimera::tokenizer::Tokenizer;
use clap::{FromArgMatches, Parser, Subcommand};
use shape::{PassArgs, ShapeArgs};

/// Trains networks too large for one device by pipelining them over many: Chimera's bidirectional
/// pipelines and other schedules, proven, simulated, drawn and run.
#[derive(Parser)]
#[command(version, about, args_override_self = true)] // so that a script's options can stand before a user's
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Train(train::Train),
    Top(top::Top),
    Generate(generate::Generate),
    Eval(eval::Eval),
    Export(export_model::Export),
    Prepare(prepare::Prepare),
    Schedule(schedule::Schedule),
    Simulate(simulate::Simulate),
    Plan(plan::Plan),
    Config(config::Config),
    Checkpoint(checkpoint::Checkpoint),
    #[command(subcommand)]
    Comm(comm::CommCommand),
    Slurm(slurm::Slurm),
    Devices(devices::Devices),
    Selftest(selftest::Selftest),
    Completions(shell::Completions),
    Man(shell::Man),
}

impl Cli {
    /// Reads the command line; exits where it is wrong, or asks for help.
    pub(crate) fn read() -> Cli {
        let words = std::env::args_os().map(with_dashes);
        let mut matches = examples::command().get_matches_from(words);
        Cli::from_arg_matches_mut(&mut matches).unwrap_or_else(|error| error.exit())
    }

    /// Does what the command line says.
    pub(crate) fn run(self) -> Result<()> {
        match self.command {
            Command::Train(train) => train.run(),
            Command::Top(top) => top.run(),
            Command::Generate(generate) => generate.run(),
            Command::Eval(eval) => eval.run(),
            Command::Export(export) => export.run(),
            Command::Prepare(prepare) => prepare.run(),
            Command::Schedule(schedule) => schedule.run(),
            Command::Simulate(simulate) => simulate.run(),
            Command::Plan(plan) => plan.run(),
            Command::Config(config) => config.run(),
            Command::Checkpoint(checkpoint) => checkpoint.run(),
            Command::Comm(comm) => comm.run(),
            Command::Slurm(slurm) => slurm.run(),
            Command::Devices(devices) => devices.run(),
            Command::Selftest(selftest) => selftest.run(),
            Command::Completions(completions) => completions.run(),
            Command::Man(man) => man.run(),
        }
    }
}

/// An option whose parts are parted by `-`, where they may be by `_`.
fn with_dashes(word: OsString) -> OsString {
    let Some(option) = word.to_str().filter(|word| word.starts_with("--")) else { return word };
    let (name, value) = option.split_at(option.find('=').unwrap_or(option.len()));
    match name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
        true => format!("{}{value}", name.replace('_', "-")).into(),
        false => word,
    }
}

/// Writes a file that is there whole or not at all.
fn write_whole(path: &Path, content: &str) -> Result<()> {
    let written = files::write(path, content.as_bytes());
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Warns where bytes are given to a model that knows as many ids as GPT-2's tokenizer has.
fn warn_of_bytes(data: Option<&Tokenizer>, vocab: usize) {
    if let (Some(Tokenizer::Bytes), Some(Tokenizer::Gpt2)) = (data, Tokenizer::of_vocab(vocab)) {
        warn(&format!(
            "the data is bytes, but a model of {vocab} ids was likely trained on GPT-2's tokens: `chimera prepare \
             --tokenizer gpt2` makes them"
        ));
    }
}

fn require_folder(path: &Path) -> Result<()> {
    ensure!(path.exists(), "{}: there is no such folder", path.display());
    ensure!(path.is_dir(), "{} is a file: name a folder", path.display());
    Ok(())
}

/// A time or another number of a report, in whatever unit.
fn figure(x: f64) -> String {
    significant(x, 6)
}

/// Writes a line to standard error, where `eprintln!` would panic when that is closed or full.
pub(crate) fn tell(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Writes a line about something that ends nothing.
fn warn(problem: &str) {
    tell(format_args!("warning: {problem}"));
}

/// Writes a report to standard output, where `println!` would panic when the reader is gone.
fn print(report: impl AsRef<str>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(report.as_ref().trim_end().as_bytes())?;
    Ok(out.write_all(b"\n").and_then(|()| out.flush())?)
}
