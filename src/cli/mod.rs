//! The `chimera` command: `commands` are its subcommands, a file each, and `parts` what several of them share.

mod commands;
mod examples;
mod parts;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{FromArgMatches, Parser, Subcommand};
use commands::{
    checkpoint, comm, completions, config, devices, eval, export_model, generate, man, plan,
    prepare, profile, report, schedule, selftest, simulate, slurm, top, trace, train,
};

use crate::settings::args::explained;

/// Does what the command line of this process says; what goes wrong is printed, and tells in the exit code.
pub fn main() -> ExitCode {
    match Cli::read().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => parts::exit::report(&error),
    }
}

/// Trains networks too large for one device by pipelining them over many: Chimera's bidirectional
/// pipelines and other schedules, proven, simulated, drawn and run.
#[derive(Parser)]
#[command(name = "chimera", version, about, args_override_self = true)] // so that a script's options can stand before a user's
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Train(train::Train),
    Top(top::Top),
    Report(report::Report),
    Generate(generate::Generate),
    Eval(eval::Eval),
    Export(export_model::Export),
    Prepare(prepare::Prepare),
    Schedule(schedule::Schedule),
    Simulate(Box<simulate::Simulate>),
    Plan(plan::Plan),
    Profile(profile::Profile),
    #[command(subcommand)]
    Trace(trace::TraceCommand),
    Config(config::Config),
    #[command(subcommand)]
    Checkpoint(checkpoint::CheckpointCommand),
    #[command(subcommand)]
    Comm(comm::CommCommand),
    Slurm(slurm::Slurm),
    Devices(devices::Devices),
    Selftest(selftest::Selftest),
    Completions(completions::Completions),
    Man(man::Man),
}

impl Cli {
    /// Reads the command line; exits where it is wrong, or asks for help.
    pub(crate) fn read() -> Cli {
        let words = std::env::args_os().map(with_dashes);
        let matches = examples::command().try_get_matches_from(words);
        let cli = matches.and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches));
        cli.unwrap_or_else(|error| explained(error).exit())
    }

    /// Does what the command line says.
    pub(crate) fn run(self) -> Result<()> {
        match self.command {
            Command::Train(train) => train.run(),
            Command::Top(top) => top.run(),
            Command::Report(report) => report.run(),
            Command::Generate(generate) => generate.run(),
            Command::Eval(eval) => eval.run(),
            Command::Export(export) => export.run(),
            Command::Prepare(prepare) => prepare.run(),
            Command::Schedule(schedule) => schedule.run(),
            Command::Simulate(simulate) => simulate.run(),
            Command::Plan(plan) => plan.run(),
            Command::Profile(profile) => profile.run(),
            Command::Trace(trace) => trace.run(),
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
