//! Compares predictions from a machine's profile with measurements, for models that were not
//! profiled: models of random shapes are trained for some steps.

mod advice;
mod draw;
mod regret;
mod run;
mod unseen;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use xtask::command::{chimera, run as run_command, target};

/// Options of the study.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seed of the random shapes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Models that are trained [default: 12, or 3 with --regret and 10 with --advice]
    #[arg(long, value_name = "COUNT")]
    cases: Option<u64>,
    /// The first case
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    from: u64,
    /// Steps of each training; the first is not measured
    #[arg(long, value_name = "COUNT", default_value_t = 12, value_parser = clap::value_parser!(u32).range(4..))]
    steps: u32,
    /// Rounds through all models, or through configurations with --regret; the median counts, so
    /// that changes of the machine's speed affect all [default: 1, or 2 with --regret and --advice]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..))]
    rounds: Option<u8>,
    /// Profile of this machine [default: a new one in target/predict, or the existing one with
    /// --keep-profile]
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Uses the profile in target/predict, if there is one
    #[arg(long)]
    keep_profile: bool,
    /// Seconds to measure the profile for
    #[arg(long, value_name = "SECONDS", default_value_t = 90)]
    time: u32,
    /// The command, in a release build [default: built from here]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Runs every configuration of a model that fits this machine, and compares the order of the plan with theirs
    #[arg(long)]
    regret: bool,
    /// Follows the advice at the end of runs, and compares its worth with the predicted gain
    #[arg(long, conflicts_with = "regret")]
    advice: bool,
}

/// Measures a profile, trains, and prints the table.
pub(crate) fn run(args: &Args) -> Result<()> {
    let chimera = match &args.program {
        Some(program) => program.canonicalize()?,
        None => chimera()?,
    };
    let profile = profile(args, &chimera)?;
    let lab = run::Lab { chimera, profile, steps: args.steps, folder: tempfile::tempdir()? };
    let (seed, cases) =
        (args.seed, |usual: u64| args.from..args.from + args.cases.unwrap_or(usual));
    let rounds = |usual: u8| 0..args.rounds.unwrap_or(usual);
    match (args.regret, args.advice) {
        (true, _) => regret::run(&lab, seed, cases(3), rounds(2)),
        (_, true) => advice::run(&lab, seed, cases(10), rounds(2)),
        _ => unseen::run(&lab, seed, cases(12), rounds(1)),
    }
}

/// The profile, measured first unless one is named or kept.
fn profile(args: &Args, chimera: &Path) -> Result<PathBuf> {
    if let Some(named) = &args.profile {
        return Ok(named.canonicalize()?);
    }
    let folder = target()?.join("predict");
    let path = folder.join("profile.json");
    if !(args.keep_profile && path.exists()) {
        std::fs::create_dir_all(&folder)?;
        let mut measure = Command::new(chimera);
        measure.args(["profile", "--threads", "1", "--time", &args.time.to_string(), "--out"]);
        run_command(measure.arg(&path))?;
    }
    Ok(path)
}
