//! Cost of a checkpoint after every step.
//!
//! Runs with and without alternate, so that changes of the machine's speed affect both.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use xtask::command::{chimera, read, root};
use xtask::measure::{METRICS, median, metrics, number, sources};

/// 50 million parameters, and a step of 8,192 tokens.
const SHAPE: [&str; 16] = [
    "--layers", "12", "--hidden", "592", "--heads", "8", "--context", "256", "--vocab", "256",
    "--micro-batches", "8", "--micro-batch-size", "4", "--depth", "2",
];

/// Length of the measurement.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Repetitions of each run; the median counts
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Optimizer steps per run; the first is not measured
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u16).range(2..))]
    steps: u16,
}

/// Measures and prints the cost.
pub(crate) fn run(args: &Args) -> Result<()> {
    let chimera = chimera()?;
    let folder = tempfile::tempdir()?;
    let data = sources(folder.path())?;
    let mut steps = [Vec::new(), Vec::new()];
    for round in 0..args.rounds {
        for (every, all) in ["0", "1"].into_iter().zip(&mut steps) {
            let steps = measure(&chimera, folder.path(), &data, every, args.steps)?;
            let seconds: Vec<_> = steps.iter().map(|step| format!("{:.3}", step.seconds)).collect();
            eprintln!("round {}: --save-every {every}: {} s", round + 1, seconds.join(", "));
            all.extend(steps);
        }
    }
    let seconds = |steps: &[Step]| median(steps.iter().map(|step| step.seconds).collect());
    let [without, with] = steps.each_ref().map(|steps| seconds(steps));
    let copy = median(steps[1].iter().map(|step| step.copy).collect());
    let percent = |more: f64| more / without * 100.0;
    println!(
        "a step takes {without:.3} s, with a checkpoint {with:.3} s: {:+.1} %, of which the copy to host memory is \
         {copy:.3} s or {:.1} %, and all else {:+.1} %",
        percent(with - without),
        percent(copy),
        percent(with - without - copy),
    );
    Ok(())
}

/// Times of one step.
struct Step {
    /// Seconds in total.
    seconds: f64,
    /// Seconds of copying the state before it.
    copy: f64,
}

/// Measures each step except the first.
fn measure(
    chimera: &Path,
    folder: &Path,
    data: &Path,
    every: &str,
    steps: u16,
) -> Result<Vec<Step>> {
    let out = tempfile::tempdir_in(folder)?;
    let mut command = Command::new(chimera);
    command.arg("train").args(SHAPE).args(["--threads", "1", "--save-every", every]);
    command.args(["--steps", &steps.to_string()]).current_dir(root());
    command.arg("--data").arg(data).arg("--out").arg(out.path());
    read(&mut command)?;
    let steps = metrics(&out.path().join(METRICS))?;
    let steps = steps.iter().skip(1).map(|step| {
        Ok(Step { seconds: number(step, "step_s")?, copy: step["copy_s"].as_f64().unwrap_or(0.0) })
    });
    steps.collect()
}
