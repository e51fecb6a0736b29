//! Studies that take minutes or hours: `cargo xtask NAME` runs each. README.md says what each
//! answers.

mod auto_sweep;
mod bench;
mod blind;
mod execute;
mod kfac;
mod kill_sweep;
mod oracle;
mod paper;
mod predict;
mod survive;
mod sweep;

use clap::Parser;

/// Studies of the project
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
enum Study {
    /// `auto` over drawn cases, against every listed schedule with every pass, and its bound
    AutoSweep(auto_sweep::Args),
    /// Measurements
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Predict what others measured, with constants from data sheets and at most one row of each
    /// table, and write docs/blind.md
    Blind(blind::Args),
    /// Run random schedules with stages that sleep, and compare them with their simulation
    Execute(execute::Args),
    /// Train a small BERT on the King James Bible with AdamW and with K-FAC, at five learning rates
    /// each, and write docs/kfac.md
    Kfac(kfac::Args),
    /// Kill and stop each rank of a run over MPI at every point, make it panic, and write
    /// docs/reliability.md
    KillSweep(kill_sweep::Args),
    /// Test the oracle of `sweep --prove`; needs cmake and libclang
    Oracle,
    /// Simulate the evaluation of Chimera's paper with constants fitted to some of its bars, and
    /// write docs/paper.md
    Paper(paper::Args),
    /// Train random models, and compare them with predictions from a profile of this machine
    Predict(predict::Args),
    /// Run trainings in which ranks die, drawn from seeds: each must end with the bits of the
    /// undisturbed one
    Survive(survive::Args),
    /// Search orders for many cases, and compare them with bounds and the schedules of the table
    Sweep(sweep::Args),
}

fn main() -> anyhow::Result<()> {
    match Study::parse() {
        Study::AutoSweep(args) => auto_sweep::run(&args),
        Study::Bench(bench) => bench.run(),
        Study::Blind(args) => blind::run(&args),
        Study::Execute(args) => execute::run(&args),
        Study::Kfac(args) => kfac::run(&args),
        Study::KillSweep(args) => kill_sweep::run(&args),
        Study::Oracle => oracle::test(),
        Study::Paper(args) => paper::run(&args),
        Study::Predict(args) => predict::run(&args),
        Study::Survive(args) => survive::run(&args),
        Study::Sweep(args) => sweep::run(&args),
    }
}
