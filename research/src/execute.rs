//! Simulated schedules compared with the clock: random cases are run by `simulate --execute` with
//! stages that sleep.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use xtask::command::{chimera, read};
use xtask::measure::{median, number};

/// Cases to draw.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seed of the random cases
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Cases
    #[arg(long, value_name = "COUNT", default_value_t = 60)]
    cases: u64,
    /// The command, in a release build [default: built from here]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// Synchronous schedules of the table, with the ranges of their random shapes.
const SCHEDULES: [&str; 14] = [
    "gpipe", "1f1b", "gems", "chimera", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min",
    "hanayo", "dualpipe", "dualpipe-v", "mixpipe",
];
/// Seconds of a cost unit: costs are in milliseconds.
const SECONDS_PER_UNIT: &str = "0.001";
/// Largest differences between measured and simulated makespan and bubble, as fractions of the
/// time.
const WITHIN: [f64; 2] = [0.05, 0.02];
/// Largest relative difference between the simulated length of the measured critical path and the
/// makespan.
const PATH_WITHIN: f64 = 0.01;

/// Runs the cases and prints how many agree.
pub(crate) fn run(args: &Args) -> Result<()> {
    let chimera = match &args.program {
        Some(program) => program.canonicalize()?,
        None => chimera()?,
    };
    let mut random = ChaCha8Rng::seed_from_u64(args.seed);
    let (mut n_agree, mut n_paths, mut errors, mut n_done) = (0, 0, Vec::new(), 0);
    while n_done < args.cases {
        let case = draw(&mut random);
        // Not all schedules have all shapes.
        let Ok(outcome) = execute(&chimera, &case) else { continue };
        n_done += 1;
        let of = |key: &str| number(&outcome, key);
        let error = of("measured_makespan")? / of("makespan")? - 1.0;
        let bubble = of("measured_bubble")? - of("bubble_ratio")?;
        let path = of("measured_critical_path")? / of("makespan")? - 1.0;
        let agrees = error.abs() <= WITHIN[0] && bubble.abs() <= WITHIN[1];
        n_agree += u32::from(agrees);
        n_paths += u32::from(path.abs() <= PATH_WITHIN);
        errors.push(error.abs());
        println!(
            "{:+.2} % {:+.2} points, path {:+.2} %{}: {}",
            100.0 * error,
            100.0 * bubble,
            100.0 * path,
            if agrees { "" } else { " MISSED" },
            case.join(" ")
        );
    }
    let worst = errors.iter().copied().fold(0.0, f64::max);
    println!(
        "seed {}: {n_agree} of {n_done} agree within 5 % and 2 points, the critical path within 1 % in {n_paths}; the makespan errs by \
         {:.2} % in the median and {:.2} % at most",
        args.seed,
        100.0 * median(errors),
        100.0 * worst
    );
    Ok(())
}

/// The options of a case: stages of 1 to 8 ms that differ up to threefold, and messages that take
/// time.
fn draw(random: &mut ChaCha8Rng) -> Vec<String> {
    let schedule = *SCHEDULES.choose(random).unwrap_or(&"1f1b");
    let depth = *[2, 3, 4, 6, 8, 12, 16].choose(random).unwrap_or(&4);
    let n = *[1, 2, 4, 8, 12, 16].choose(random).unwrap_or(&4);
    let chunks = match schedule {
        "interleaved" | "zb-v" | "v-half" | "v-min" | "dualpipe-v" => 2,
        "hanayo" => 4,
        _ => 1,
    };
    let least = random.random_range(1.0..2.6);
    let mut times = |factor: f64| {
        let times: Vec<String> = (0..depth * chunks)
            .map(|_| format!("{:.3}", factor * random.random_range(least..3.0 * least)))
            .collect();
        times.join(",")
    };
    let (forward, backward) = (times(1.0), times(1.0));
    let message = if random.random() { random.random_range(0.0..2.0) } else { 0.0 };
    let case = format!(
        "{schedule} --depth {depth} --micro-batches {n} --forward {forward} --backward {backward} --message {message:.3}"
    );
    case.split(' ').map(String::from).collect()
}

fn execute(chimera: &Path, case: &[String]) -> Result<Value> {
    let mut simulate = Command::new(chimera);
    simulate.arg("simulate").args(case).args(["--execute", SECONDS_PER_UNIT, "--json"]);
    serde_json::from_str(&read(&mut simulate)?).context("what the command printed")
}
