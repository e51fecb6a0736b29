//! Our schedules in PyTorch's hands: its own runtime executes every export on CPU, and loss and
//! gradients must be those of the same network run whole.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use chimera_core::exchange::{csv, to_csv};
use chimera_core::ids::PipeId;
use chimera_core::schedule::{SCHEDULES, Scaling, Schedule, Shape, find};
use serde_json::Value;

use crate::command::{read, root, run as run_command};

/// Largest relative difference that rounding in f64 explains.
const TOLERANCE: f64 = 1e-12;

/// With which PyTorch.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Python that has torch [default: a fresh one in target/pytorch, which downloads torch]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
}

/// Exports, executes and compares every schedule that the CSV can hold.
pub(crate) fn run(args: &Args) -> Result<()> {
    let python = match &args.python {
        Some(python) => python.clone(),
        None => install()?,
    };
    let folder = tempfile::tempdir()?;
    let files = exports(folder.path())?;
    let mut peer = Command::new(python);
    peer.arg("xtask/peers/torch_pipeline_runtime.py").args(&files).current_dir(root());
    let output = read(&mut peer)?;
    let results = output.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
    let results = results.context("the peer's output")?;
    ensure!(results.len() == files.len(), "{} of {} were run", results.len(), files.len());
    println!("{:<28} stages  micro-batches  actions  loss error  gradient error", "schedule");
    for result in &results {
        let text = |key: &str| result[key].as_str().unwrap_or("?").trim_end_matches(".csv");
        let number = |key: &str| result[key].as_f64().unwrap_or(f64::INFINITY);
        let (loss, gradient) = (number("loss_error"), number("gradient_error"));
        println!(
            "{:<28} {:>6}  {:>13}  {:>7}  {loss:>10.1e}  {gradient:>14.1e}",
            text("file"),
            number("stages"),
            number("micro_batches"),
            number("actions"),
        );
        let is_same = loss <= TOLERANCE && gradient <= TOLERANCE;
        ensure!(is_same, "{} differs by more than {TOLERANCE:e}", text("file"));
    }
    let torch = results.first().and_then(|result| result["torch"].as_str()).unwrap_or("?");
    println!("torch {torch} runs all {} as the whole network, within {TOLERANCE:e}", results.len());
    Ok(())
}

/// Writes every pipe of every schedule; says what the CSV cannot hold.
fn exports(folder: &Path) -> Result<Vec<PathBuf>> {
    let shape = Shape::new(4, 8);
    let mut all: Vec<(String, &dyn Schedule, Shape)> =
        SCHEDULES.iter().map(|s| (s.name().to_owned(), *s, shape)).collect();
    let chimera = find("chimera")?;
    all.push(("chimera-four-pipes".into(), chimera, Shape { n_pipes: 4, ..shape }));
    all.push(("chimera-doubling".into(), chimera, Shape { scaling: Scaling::Doubling, ..shape }));
    all.push(("1f1b-remainder".into(), find("1f1b")?, Shape::new(4, 3)));
    let mut files = Vec::new();
    for (name, schedule, shape) in all {
        let timetable = match schedule.timetable(&shape) {
            Ok(timetable) => timetable,
            Err(unfit) => {
                println!("left out: {unfit}");
                continue;
            }
        };
        let pipes = (0..timetable.placement.n_pipes()).map(|pipe| PipeId(pipe as u16));
        for pipe in pipes.filter(|pipe| !csv::micro_batches(&timetable, *pipe).is_empty()) {
            match to_csv(&timetable, pipe) {
                Ok(csv) => {
                    let file = folder.join(format!("{name}, {pipe}.csv"));
                    std::fs::write(&file, csv)?;
                    files.push(file);
                }
                Err(inexpressible) => println!("left out: {inexpressible}"),
            }
        }
    }
    Ok(files)
}

/// The Python of a virtual environment that has torch.
fn install() -> Result<PathBuf> {
    let folder = root().join("target/pytorch");
    let python = folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    if !python.exists() {
        run_command(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    }
    run_command(Command::new(&python).args(["-m", "pip", "install", "--quiet", "torch", "numpy"]))?;
    Ok(python)
}
