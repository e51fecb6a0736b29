//! The subcommands, one file each, and what several of them share: shapes, `costs`, the
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
mod shell;
mod simulate;
mod slurm;
#[cfg(all(feature = "mpi", unix, debug_assertions))]
mod strike;
mod top;
mod train;

use std::fmt::Display;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use chimera::auto::Where;
use chimera::core::lower::{Hoist, Passes, Recompute};
use chimera::core::render::significant;
use chimera::core::schedule::{Scaling, Shape};
use chimera::files;
use chimera::tokenizer::Tokenizer;
use clap::{ArgAction, Args, Parser, Subcommand};

/// Trains networks too large for one device by pipelining them over many: Chimera's bidirectional
/// pipelines and other schedules, proven, simulated, drawn and run.
#[derive(Parser)]
#[command(version, about)]
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

/// The shape of a schedule and what is done to it, as every subcommand about schedules spells it.
#[derive(Args, Clone, Copy, PartialEq)]
#[command(mut_args(|arg| arg.allow_negative_numbers(true)))]
struct ShapeArgs {
    /// Workers of the pipeline group, D
    #[arg(long, value_name = "D", default_value_t = 4)]
    depth: usize,
    /// Micro-batches of a step, N [default: D]
    #[arg(long, value_name = "N")]
    micro_batches: Option<u32>,
    /// Pipes of Chimera, or of `auto` on mirrored ones, 2f
    #[arg(long, value_name = "2f", default_value_t = 2)]
    pipes: usize,
    /// Stages per worker of an interleaved schedule, or of `auto` on interleaved ones, v
    #[arg(long, value_name = "v", default_value_t = 2)]
    chunks: usize,
    /// Chimera with more micro-batches than workers: direct, doubling or halving; `auto` reads whether they
    /// are halved
    #[arg(long, value_name = "MODE", default_value = "direct")]
    scaling: Scaling,
    /// Forwards, and then backwards, in turn of 1F1B, k (kFkB)
    #[arg(long, value_name = "k", default_value_t = 1)]
    in_turn: u32,
    /// Waves of Hanayo, or of `auto` on waves
    #[arg(long, value_name = "WAVES", default_value_t = 2)]
    waves: usize,
    /// The most micro-batches on their way in each direction of MixPipe, K
    #[arg(long, value_name = "K")]
    in_flight: Option<u32>,
    /// Steps between the flushes of an asynchronous schedule, T
    #[arg(long, value_name = "T", default_value_t = 2)]
    window: u32,
    /// Where `auto` searches: line, interleaved, v, wave or mirrored
    #[arg(long, value_name = "NAME", default_value = "mirrored")]
    placement: Where,
    /// Seconds that `auto` may take
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = costs::number)]
    search_time: f64,
    /// Key of the random draws of `auto`
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    search_seed: u64,
    #[command(flatten)]
    passes: PassArgs,
}

/// What is done to a schedule.
#[derive(Args, Clone, Copy, PartialEq)]
struct PassArgs {
    /// What forwards keep: none (all residuals, nothing is recomputed), full (recompute all from the
    /// input) or selective (recompute what is cheap)
    #[arg(long, value_name = "MODE", default_value = "none")]
    recompute: Recompute,
    /// Cells by which recomputations run before their backwards, auto for the shortest step within
    /// `--memory-cap`, or on-demand to wait for the gradient first
    #[arg(long, value_name = "CELLS", default_value = "0")]
    hoist: Hoist,
    /// Splits backwards; weight halves go into idle time
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        default_value = "false",
        action = ArgAction::Set
    )]
    split_backward: bool,
}

impl PassArgs {
    fn passes(self) -> Result<Passes> {
        let PassArgs { recompute, hoist, split_backward } = self;
        let passes = Passes { recompute, hoist, split_backward };
        ensure!(
            !passes.move_nothing(),
            "--hoist {hoist} moves recomputations: say --recompute full or selective too"
        );
        Ok(passes)
    }
}

impl ShapeArgs {
    fn shape(self) -> Shape {
        let as_many = u32::try_from(self.depth).unwrap_or(u32::MAX);
        Shape {
            n_pipes: self.pipes,
            n_chunks: self.chunks,
            scaling: self.scaling,
            n_in_turn: self.in_turn,
            n_waves: self.waves,
            in_flight: self.in_flight,
            window: self.window,
            ..Shape::new(self.depth, self.micro_batches.unwrap_or(as_many))
        }
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
