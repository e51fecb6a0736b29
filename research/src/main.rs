//! Studies that take minutes or hours: `cargo xtask NAME` runs each. README.md says what each answers.

mod bench;
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
    /// Measurements
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Drawn schedules run with stages that sleep, beside their simulation
    Execute(execute::Args),
    /// Trains a small BERT on the King James Bible by AdamW and by K-FAC, at five learning rates each, and writes docs/kfac.md
    Kfac(kfac::Args),
    /// Kills and stops each rank of a run over MPI everywhere, lets it panic, and writes docs/reliability.md
    KillSweep(kill_sweep::Args),
    /// Tests of the oracle that `sweep --prove` asks; it needs cmake and libclang
    Oracle,
    /// Simulates the evaluation of Chimera's paper at constants fitted to some of its bars, and writes docs/paper.md
    Paper(paper::Args),
    /// Trainings of drawn models beside what a profile of this machine predicts of them
    Predict(predict::Args),
    /// Trainings in which ranks die, drawn from seeds: each must end with the bits of the undisturbed one
    Survive(survive::Args),
    /// The order search over many cases, beside its bound and the schedules of the table
    Sweep(sweep::Args),
}

fn main() -> anyhow::Result<()> {
    match Study::parse() {
        Study::Bench(bench) => bench.run(),
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
