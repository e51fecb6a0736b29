//! Proves bounds on the shortest orders of small pipelines, as mixed-integer programs.

mod problem;
mod solve;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use chimera_core::analyze::simulate;
use chimera_core::costs::UniformCosts;
use chimera_core::interchange::from_json;
use chimera_core::lower::{Lowering, lower};
use chimera_core::timetable::Timetable;
use clap::Parser;
use serde_json::json;

use problem::Problem;
use solve::{Answer, solve};

/// Tries horizons from the longest path on, until one is long enough for the ops of a timetable or
/// time runs out. Prints a lower bound on the time of all orders, and the shortest known makespan.
#[derive(Parser)]
struct Args {
    /// A timetable as JSON
    file: PathBuf,
    /// Cost of a forward
    #[arg(long, default_value_t = 1.0)]
    forward: f64,
    /// Cost of a whole backward
    #[arg(long, default_value_t = 2.0)]
    backward: f64,
    /// Cost of a message
    #[arg(long, default_value_t = 0.0)]
    message: f64,
    /// The largest number of micro-batches whose activations a worker may hold
    #[arg(long)]
    memory_cap: f64,
    /// A makespan that is known to be too short
    #[arg(long, default_value_t = 0.0)]
    above: f64,
    /// Time limit in seconds
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let bytes = fs::read(&args.file).with_context(|| format!("reading {}", args.file.display()))?;
    let timetable = from_json(&bytes)?;
    let costs = UniformCosts::new(args.forward, args.backward, args.message);
    let time_limit = Duration::from_secs_f64(args.seconds);
    let proof = prove(&timetable, &costs, args.memory_cap, args.above, time_limit)?;
    println!("{}", json!({ "at_least": proof.at_least, "makespan": proof.makespan }));
    Ok(())
}

struct Proof {
    /// A lower bound: no order is shorter.
    at_least: f64,
    /// The shortest known makespan.
    makespan: f64,
}

/// Returns bounds on the shortest order of the ops in `timetable`. All orders are known to take
/// longer than `above`.
fn prove(
    timetable: &Timetable,
    costs: &UniformCosts,
    max_peak: f64,
    above: f64,
    time_limit: Duration,
) -> Result<Proof> {
    let began = Instant::now();
    let makespan = makespan(timetable, costs, max_peak)?;
    let problem = Problem::new(timetable, costs, max_peak)?;
    let ways = problem.heads().into_iter().zip(problem.tails());
    let longest = ways.map(|(head, tail)| head + tail).max().unwrap_or(0);
    let mut horizon = longest.max((above / problem.unit - 1e-6).ceil() as i64);
    let known = (makespan / problem.unit).round() as i64;
    while horizon < known {
        let left = time_limit.saturating_sub(began.elapsed());
        match solve(&problem, horizon, left)? {
            Answer::No => horizon += 1,
            Answer::Unknown => break,
            Answer::Starts(starts) => {
                let found = problem.timetable(timetable, &starts);
                let makespan = self::makespan(&found, costs, max_peak)?;
                if makespan > horizon as f64 * problem.unit + 1e-6 {
                    bail!("the program's order takes {makespan}, not {horizon} units");
                }
                return Ok(Proof { at_least: horizon as f64 * problem.unit, makespan });
            }
        }
        eprintln!("more than {} units of {}, {:.1?}", horizon - 1, problem.unit, began.elapsed());
    }
    Ok(Proof { at_least: horizon as f64 * problem.unit, makespan })
}

/// The makespan of a timetable, once it is proven.
fn makespan(timetable: &Timetable, costs: &UniformCosts, max_peak: f64) -> Result<f64> {
    let program = lower(timetable, &Lowering { max_peak: Some(max_peak), ..Lowering::default() })?;
    Ok(simulate(&program, costs).makespan())
}

#[cfg(test)]
mod tests;
