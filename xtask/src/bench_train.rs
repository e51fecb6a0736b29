//! Tokens per second of training on CPU, next to the same model in PyTorch.
//!
//! Ours and the peer's runs alternate, so that a change of the machine's speed meets both.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::bench::{METRICS, median, sources, tokens_per_s};
use crate::command::{chimera, read, root};

/// Steps at the start that are not measured.
const WARM_UP: usize = 2;
/// The model and the batch, as both commands spell them.
const SHAPE: [&str; 14] = [
    "--layers",
    "8",
    "--hidden",
    "256",
    "--heads",
    "8",
    "--context",
    "256",
    "--vocab",
    "256",
    "--micro-batches",
    "8",
    "--micro-batch-size",
    "4",
];

/// What to measure, and against what.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Text to train on [default: the sources of chimera-core]
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Measures the same model in PyTorch too
    #[arg(long)]
    peer: bool,
    /// Python that has torch
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: String,
    /// How often each run is repeated; the median counts
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Optimizer steps per run; the first two are not measured
    #[arg(long, value_name = "COUNT", default_value_t = 12, value_parser = clap::value_parser!(u16).range(4..))]
    steps: u16,
    /// Prints the table as Markdown
    #[arg(long)]
    markdown: bool,
}

/// One row of the table.
struct Run {
    name: &'static str,
    by: Trainer,
    schedule: &'static str,
    depth: u16,
    threads: u16,
}

#[derive(Clone, Copy, PartialEq)]
enum Trainer {
    Chimera,
    Torch,
}

/// Every run, in the order in which a round goes through them.
const RUNS: [Run; 7] = [
    run_of("chimera, 2 workers", Trainer::Chimera, "chimera", 2, 1),
    run_of("torch 1F1B, 2 processes", Trainer::Torch, "1F1B", 2, 1),
    run_of("1f1b, 2 workers", Trainer::Chimera, "1f1b", 2, 1),
    run_of("torch, 2 threads", Trainer::Torch, "1F1B", 1, 2),
    run_of("1 worker, 2 threads", Trainer::Chimera, "1f1b", 1, 2),
    run_of("torch, 1 thread", Trainer::Torch, "1F1B", 1, 1),
    run_of("1 worker, 1 thread", Trainer::Chimera, "1f1b", 1, 1),
];

const fn run_of(
    name: &'static str,
    by: Trainer,
    schedule: &'static str,
    depth: u16,
    threads: u16,
) -> Run {
    Run { name, by, schedule, depth, threads }
}

/// Measures and prints the table.
pub(crate) fn run(args: &Args) -> Result<()> {
    let torch = if args.peer { Some(torch_version(&args.python)?) } else { None };
    let chimera = chimera()?;
    let folder = tempfile::tempdir()?;
    let data = match &args.data {
        Some(path) => path.canonicalize().with_context(|| format!("{}", path.display()))?,
        None => sources(folder.path())?,
    };
    let runs = RUNS.iter().filter(|run| args.peer || run.by == Trainer::Chimera);
    let mut rates: Vec<(&Run, Vec<f64>)> = runs.map(|run| (run, Vec::new())).collect();
    for round in 0..args.rounds {
        for (run, rates) in &mut rates {
            let rate = match run.by {
                Trainer::Chimera => ours(&chimera, folder.path(), &data, run, args.steps)?,
                Trainer::Torch => peers(&args.python, &data, run, args.steps, round)?,
            };
            eprintln!("round {}: {}: {rate:.0} tokens/s", round + 1, run.name);
            rates.push(rate);
        }
    }
    let medians: Vec<_> = rates.into_iter().map(|(run, rates)| (run, median(rates))).collect();
    let torch = torch.map(|version| format!(", torch {}", version.trim())).unwrap_or_default();
    println!("{} steps, median of {} rounds{torch}", args.steps, args.rounds);
    print!("{}", table(&medians, args.markdown));
    Ok(())
}

/// Tokens per second of one of our runs.
fn ours(chimera: &Path, folder: &Path, data: &Path, run: &Run, steps: u16) -> Result<f64> {
    let metrics = folder.join(METRICS);
    let mut command = Command::new(chimera);
    command.arg("train").args(SHAPE).args(["--schedule", run.schedule]).current_dir(root());
    command.args(numbers(run, steps)).arg("--data").arg(data);
    command.arg("--metrics").arg(&metrics).arg("--out").arg(tempfile::tempdir_in(folder)?.path());
    read(&mut command)?;
    let rate = tokens_per_s(&metrics, WARM_UP);
    fs::remove_file(&metrics)?;
    rate
}

/// Tokens per second of one run in PyTorch.
fn peers(python: &str, data: &Path, run: &Run, steps: u16, round: u16) -> Result<f64> {
    let mut command = Command::new(python);
    command.arg("xtask/peers/torch_gpt_pipeline.py").args(SHAPE).current_dir(root());
    command.args(numbers(run, steps)).args(["--schedule", run.schedule]);
    command.args(["--port".into(), format!("{}", 29500 + round)]).arg("--data").arg(data);
    let output = read(&mut command)?;
    let result: Value = serde_json::from_str(output.trim()).context("the peer's output")?;
    result["tokens_per_s"].as_f64().context("the peer's output without tokens_per_s")
}

fn numbers(run: &Run, steps: u16) -> [String; 6] {
    let [depth, threads, steps] = [run.depth, run.threads, steps].map(|n| n.to_string());
    ["--depth".into(), depth, "--threads".into(), threads, "--steps".into(), steps]
}

fn torch_version(python: &str) -> Result<String> {
    let mut command = Command::new(python);
    match read(command.args(["-c", "import torch; print(torch.__version__)"])) {
        Ok(version) => Ok(version),
        Err(e) => bail!("--peer needs torch: {python} -m pip install torch numpy\n{e:#}"),
    }
}

/// Rates, and their ratios to each of the peer's.
fn table(rates: &[(&Run, f64)], markdown: bool) -> String {
    let peers: Vec<_> = rates.iter().filter(|(run, _)| run.by == Trainer::Torch).collect();
    let mut rows = vec![vec!["run".to_owned(), "tokens/s".to_owned()]];
    rows[0].extend(peers.iter().map(|(run, _)| format!("/ {}", run.name)));
    for (run, rate) in rates {
        let mut row = vec![run.name.to_owned(), format!("{rate:.0}")];
        row.extend(peers.iter().map(|(_, peer)| format!("{:.2}", rate / peer)));
        rows.push(row);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<_> = (0..rows[0].len()).map(width).collect();
    if markdown {
        let rule = widths.iter().enumerate().map(|(i, &w)| match i {
            0 => "-".repeat(w),
            _ => format!("{}:", "-".repeat(w - 1)),
        });
        rows.insert(1, rule.collect());
    }
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, &w))| match i {
            0 => format!("{cell:<w$}"),
            _ => format!("{cell:>w$}"),
        });
        let cells: Vec<_> = cells.collect();
        if markdown {
            format!("| {} |\n", cells.join(" | "))
        } else {
            format!("{}\n", cells.join("   "))
        }
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_stand_beside_rates() {
        let rates = [(&RUNS[0], 4800.0), (&RUNS[1], 3200.0)];
        assert_eq!(
            table(&rates, true),
            "| run                     | tokens/s | / torch 1F1B, 2 processes |\n\
             | ----------------------- | -------: | ------------------------: |\n\
             | chimera, 2 workers      |     4800 |                      1.50 |\n\
             | torch 1F1B, 2 processes |     3200 |                      1.00 |\n"
        );
        assert_eq!(
            table(&rates[..1], false),
            "run                  tokens/s\nchimera, 2 workers       4800\n"
        );
    }
}
