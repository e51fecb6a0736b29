//! The subcommands, one file each.

mod config;
mod gallery;
mod schedule;
mod simulate;
mod train;

use std::io::{Read, Write};
use std::path::Path;

use anyhow::Result;
use chimera::core::exchange::{self, ReadError, json::MAX_BYTES};
use chimera::core::schedule::{Scaling, Shape, find};
use chimera::core::timetable::Timetable;
use clap::{Args, Parser, Subcommand};

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
    Schedule(schedule::Schedule),
    Simulate(simulate::Simulate),
    Config(config::Config),
}

impl Cli {
    /// Does what the command line says.
    pub(crate) fn run(self) -> Result<()> {
        match self.command {
            Command::Train(train) => train.run(),
            Command::Schedule(schedule) => schedule.run(),
            Command::Simulate(simulate) => simulate.run(),
            Command::Config(config) => config.run(),
        }
    }
}

/// The shape of a schedule, as every subcommand about schedules spells it.
#[derive(Args, Clone, Copy)]
#[command(mut_args(|arg| arg.allow_negative_numbers(true)))]
struct ShapeArgs {
    /// Workers of the pipeline group, D
    #[arg(long, value_name = "D", default_value_t = 4)]
    depth: usize,
    /// Micro-batches of a step, N [default: D]
    #[arg(long, value_name = "N")]
    micro_batches: Option<u32>,
    /// Pipes of a bidirectional schedule, 2f
    #[arg(long, value_name = "2f", default_value_t = 2)]
    pipes: usize,
    /// Stages per worker of an interleaved schedule, v
    #[arg(long, value_name = "v", default_value_t = 2)]
    chunks: usize,
    /// Chimera with more micro-batches than workers: direct, doubling or halving
    #[arg(long, value_name = "MODE", default_value = "direct")]
    scaling: Scaling,
    /// Forwards, and then backwards, in turn of 1F1B, k (kFkB)
    #[arg(long, value_name = "k", default_value_t = 1)]
    in_turn: u32,
    /// Waves of Hanayo
    #[arg(long, value_name = "WAVES", default_value_t = 2)]
    waves: usize,
    /// The most micro-batches on their way in each direction of MixPipe, K
    #[arg(long, value_name = "K")]
    in_flight: Option<u32>,
    /// Steps between the flushes of an asynchronous schedule, T
    #[arg(long, value_name = "T", default_value_t = 4)]
    window: u32,
}

impl ShapeArgs {
    fn shape(self) -> Shape {
        Shape {
            n_pipes: self.pipes,
            n_chunks: self.chunks,
            scaling: self.scaling,
            n_in_turn: self.in_turn,
            n_waves: self.waves,
            in_flight: self.in_flight,
            window: self.window,
            ..Shape::new(self.depth, self.micro_batches.unwrap_or(self.depth as u32))
        }
    }
}

/// The timetable that `name` stands for: a schedule at a shape, or a JSON file (`-` is standard input).
fn timetable(name: &str, shape: ShapeArgs) -> Result<Timetable> {
    if name == "-" || name.ends_with(".json") {
        Ok(read(Path::new(name))?)
    } else {
        Ok(find(name)?.timetable(&shape.shape())?)
    }
}

/// Reads a timetable; never more of a file than a timetable may have.
fn read(file: &Path) -> Result<Timetable, ReadError> {
    let mut bytes = Vec::new();
    let limit = MAX_BYTES as u64 + 1;
    let content = if file == Path::new("-") {
        std::io::stdin().take(limit).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|f| f.take(limit).read_to_end(&mut bytes))
    };
    content.map_err(|error| ReadError::Unreadable {
        path: file.display().to_string(),
        reason: error.to_string(),
    })?;
    exchange::from_json(&bytes)
}

/// Writes a report to standard output, where `println!` would panic when the reader is gone.
fn print(report: impl AsRef<str>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(report.as_ref().trim_end().as_bytes())?;
    Ok(out.write_all(b"\n").and_then(|()| out.flush())?)
}

/// Costs that are the same for all stages, in any unit of time.
#[derive(Args, Clone, Copy)]
#[command(mut_args(|arg| arg.allow_negative_numbers(true)))]
struct CostArgs {
    /// Time of a forward of one micro-batch on one stage
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = duration)]
    forward: f64,
    /// Time of a whole backward
    #[arg(long, value_name = "B", default_value_t = 2.0, value_parser = duration)]
    backward: f64,
    /// Time of a message between workers
    #[arg(long, value_name = "C", default_value_t = 0.0, value_parser = duration)]
    message: f64,
}

fn duration(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(t) if (0.0..=1e12).contains(&t) => Ok(t),
        Ok(_) => Err("a time is a number from 0 to 1e12".into()),
        Err(e) => Err(format!("{e}: a time is a number from 0 to 1e12")),
    }
}
