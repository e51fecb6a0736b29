//! PyTorch's runtime executes Chimera's exports on the CPU: bidirectional schedules as a whole, and
//! each pipe by itself. Loss and gradients must equal those of the same network run as a whole, and
//! replicas must be equal to the bit. Chimera reads and proves PyTorch's own files.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use chimera_core::ids::PipeId;
use chimera_core::interchange::{csv, from_csv, to_comms_csv, to_csv};
use chimera_core::lower::{Lowering, lower};
use chimera_core::schedule::{SCHEDULES, Scaling, Schedule, Shape, find};
use serde_json::Value;

use xtask::command::{files, given_python, read, root};

/// Largest relative difference that rounding in f64 explains.
const TOLERANCE: f64 = 1e-12;

/// The options of the comparison.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Python that has torch [default: a fresh one in target/pytorch, which downloads torch]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
}

/// Exports, executes and compares every schedule that the CSV can hold.
pub(crate) fn run(args: &Args) -> Result<()> {
    let python = given_python(args.python.as_deref(), "pytorch", &["torch", "numpy"])?;
    let folder = tempfile::tempdir()?;
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    for folder in [&ours, &theirs] {
        std::fs::create_dir(folder)?;
    }
    exports(&ours)?;
    let mut peer = Command::new(python);
    peer.arg("tests/peers/torch_pipeline_runtime.py").arg("--dump").arg(&theirs);
    let exports = files(&ours)?;
    let output = read(peer.args(&exports).current_dir(root()))?;
    let results = output.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
    let results = results.context("the peer's output")?;
    ensure!(results.len() == exports.len(), "{} of {} were run", results.len(), exports.len());
    println!(
        "{:<34} stages  pipes  micro-batches  actions  loss error  gradient error",
        "schedule"
    );
    for result in &results {
        let text = |key: &str| result[key].as_str().unwrap_or("?").trim_end_matches(".csv");
        let number = |key: &str| result[key].as_f64().unwrap_or(f64::INFINITY);
        let (loss, gradient) = (number("loss_error"), number("gradient_error"));
        println!(
            "{:<34} {:>6}  {:>5}  {:>13}  {:>7}  {loss:>10.1e}  {gradient:>14.1e}",
            text("file"),
            number("stages"),
            number("pipes"),
            number("micro_batches"),
            number("actions"),
        );
        let is_same = loss <= TOLERANCE && gradient <= TOLERANCE;
        ensure!(is_same, "{} differs by more than {TOLERANCE:e}", text("file"));
        let are_equal = result["replicas_are_equal"] == true;
        ensure!(are_equal, "{}: replicas of a stage have other gradients", text("file"));
    }
    let torch = results.first().and_then(|result| result["torch"].as_str()).unwrap_or("?");
    println!("torch {torch} runs all {} as the whole network, within {TOLERANCE:e}", results.len());
    prove(&theirs)
}

/// Reads and proves the schedules that PyTorch wrote.
fn prove(folder: &Path) -> Result<()> {
    let files = files(folder)?;
    ensure!(!files.is_empty(), "torch wrote no schedule of its own");
    for file in files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let timetable = from_csv(&std::fs::read(&file)?, &name)?;
        lower(&timetable, &Lowering::default())?;
        println!("torch's {name}: read and proven, {} ops", timetable.n_ops());
    }
    Ok(())
}

/// Writes every schedule as a whole, with messages, and every pipe by itself. Prints what the CSV
/// cannot hold.
fn exports(folder: &Path) -> Result<()> {
    let shape = Shape::new(4, 8);
    let mut all: Vec<(String, &dyn Schedule, Shape)> =
        SCHEDULES.iter().map(|s| (s.name().to_owned(), *s, shape)).collect();
    let chimera = find("chimera")?;
    all.push(("chimera-four-pipes".into(), chimera, Shape { n_pipes: 4, ..shape }));
    all.push(("chimera-doubling".into(), chimera, Shape { scaling: Scaling::Doubling, ..shape }));
    all.push(("chimera-remainder".into(), chimera, Shape::new(4, 5)));
    all.push(("gems-middle".into(), find("gems")?, Shape::new(3, 6)));
    all.push(("1f1b-remainder".into(), find("1f1b")?, Shape::new(4, 3)));
    for (name, schedule, shape) in all {
        let timetable = match schedule.timetable(&shape) {
            Ok(timetable) => timetable,
            Err(unfit) => {
                println!("left out: {unfit}");
                continue;
            }
        };
        let n_pipes = timetable.placement.n_pipes();
        let whole = if n_pipes > 1 { format!("{name}, {n_pipes} pipes") } else { name.clone() };
        match to_comms_csv(&lower(&timetable, &Lowering::default())?) {
            Ok(csv) => std::fs::write(folder.join(format!("{whole}.comms.csv")), csv)?,
            Err(inexpressible) => println!("left out with messages: {inexpressible}"),
        }
        let pipes = (0..n_pipes).map(|pipe| PipeId(pipe as u16));
        for pipe in pipes.filter(|pipe| !csv::micro_batches(&timetable, *pipe).is_empty()) {
            match to_csv(&timetable, pipe) {
                Ok(csv) => std::fs::write(folder.join(format!("{name}, {pipe}.csv")), csv)?,
                Err(inexpressible) => println!("left out: {inexpressible}"),
            }
        }
    }
    Ok(())
}
