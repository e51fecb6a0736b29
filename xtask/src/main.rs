//! The project's chores: `cargo xtask NAME`. CI is `cargo xtask ci` and nothing else.

mod bench;
mod bench_checkpoint;
mod bench_mpi;
mod bench_schedule;
mod bench_train;
mod bench_wgpu;
mod ci;
mod command;
mod execute;
mod faults;
mod features;
mod kfac;
mod lint;
mod measure;
mod mpi_library;
mod open_mpi_5;
mod oracle;
mod paper;
mod predict;
mod release;
mod suites;
mod sweep;

use clap::Parser;

#[cfg(unix)]
use crate::faults::torture;
use crate::faults::{fuzz, hosts, kill_sweep, slurm, survive};
use crate::lint::{absences, layers, targets, words};
use crate::release::{book, publish};
use crate::suites::{
    burn, cuda, gallery, mpi, nccl, outside, python, pytorch, report, transformers, wgpu,
};

/// The project's chores
#[derive(Parser)]
#[command(name = "cargo xtask", max_term_width = 100)]
enum Chore {
    /// Everything that must pass, in order
    Ci,
    /// Format check
    Format,
    /// Clippy without warnings
    Clippy,
    /// All tests but those of MPI, wgpu and CUDA: unit, integration and documentation
    Test {
        /// Passed on to `cargo test`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Documentation without warnings
    Docs,
    /// The book of the pages in docs, into target/book/html: its links and its search are checked
    Book,
    /// Proof that no crate depends on what it must not
    Absences,
    /// Proof that no module uses one that stands above it, and that none is in a circle
    Layers,
    /// Proof that doc comments stand alone and that retired identifiers stay away
    Words,
    /// Tests of a crate outside of the workspace: a device and a model of its own, in few lines
    Outside,
    /// Tests of the stages of burn modules, a crate outside of the workspace: against plain burn, under several schedules
    Burn,
    /// The Python package: its wheel is built, installed and tested
    Python(python::Args),
    /// Packages and builds every crate as the crates registry would serve it; publishes nothing
    Publish,
    /// Type-checks the library and the command with every feature and every two of them
    Powerset,
    /// Draws every schedule into docs/gallery
    Gallery {
        /// Only says which drawings are not up to date
        #[arg(long)]
        check: bool,
    },
    /// The order search over many cases, beside its bound and the schedules of the table
    Sweep(sweep::Args),
    /// Trainings in which ranks die, drawn from seeds: each must end with the bits of the undisturbed one
    Survive(survive::Args),
    /// Tests of the oracle that `sweep --prove` asks; it needs cmake and libclang
    Oracle,
    /// Simulates the evaluation of Chimera's paper at constants fitted to some of its bars, and writes docs/paper.md
    Paper(paper::Args),
    /// Trainings of drawn models beside what a profile of this machine predicts of them
    Predict(predict::Args),
    /// Drawn schedules run with stages that sleep, beside their simulation
    Execute(execute::Args),
    /// Fuzzes the readers of files
    Fuzz(fuzz::Args),
    /// Random commands on hostile input, under limits and with system calls that fail; needs Linux, a C compiler, and root for
    /// limits of processes
    #[cfg(unix)]
    Torture(torture::Args),
    /// Type-checks the command with wgpu for Windows and macOS; needs rustup, or the targets
    Targets,
    /// PyTorch's runtime executes our exports; loss and gradients are compared
    Pytorch(pytorch::Args),
    /// The report of a run in a headless browser: no errors, what pointing tells, and a picture; installs Chromium where it may
    Report(report::Args),
    /// Hugging Face's transformers reads our GPT-2 and we read its; logits are compared
    Transformers(transformers::Args),
    /// The transport over MPI: lints, conformance, and training under mpirun; installs MPI where it may
    Mpi(mpi::Args),
    /// Ranks over MPI on two hosts, which are namespaces made here as root: one is killed or stopped; many train
    Hosts(hosts::Args),
    /// Trains a small BERT on the King James Bible by AdamW and by K-FAC, at five learning rates each, and writes docs/kfac.md
    Kfac(kfac::Args),
    /// Kills and stops each rank of a run over MPI everywhere, lets it panic, and writes docs/reliability.md
    KillSweep(kill_sweep::Args),
    /// Training under a SLURM of one node, started here as root: by srun, and by a job that is queued again
    Slurm,
    /// Conformance and training of the wgpu backend, which needs Vulkan: installed where apt-get can
    Wgpu,
    /// The command for NVIDIA GPUs, and its kernels compiled; needs no GPU
    Cuda(cuda::Args),
    /// Opens the real NCCL, downloaded where no path is given; needs no GPU
    Nccl {
        /// The library
        path: Option<std::path::PathBuf>,
    },
    /// Tests and measures an NVIDIA GPU of this machine
    Gpu(cuda::Test),
    /// Measurements
    #[command(subcommand)]
    Bench(bench::Bench),
}

fn main() -> anyhow::Result<()> {
    match Chore::parse() {
        Chore::Ci => ci::run(),
        Chore::Format => ci::format(),
        Chore::Clippy => ci::clippy(),
        Chore::Test { args } => ci::test(&args),
        Chore::Docs => ci::docs(),
        Chore::Book => book::run(),
        Chore::Absences => absences::run(),
        Chore::Layers => layers::run(),
        Chore::Words => words::run(),
        Chore::Outside => outside::run(),
        Chore::Burn => burn::run(),
        Chore::Python(args) => python::run(&args),
        Chore::Publish => publish::run(),
        Chore::Powerset => publish::powerset(),
        Chore::Gallery { check } => gallery::run(check),
        Chore::Survive(args) => survive::run(&args),
        Chore::Sweep(args) => sweep::run(&args),
        Chore::Oracle => oracle::test(),
        Chore::Paper(args) => paper::run(&args),
        Chore::Predict(args) => predict::run(&args),
        Chore::Execute(args) => execute::run(&args),
        Chore::Fuzz(args) => fuzz::run(&args),
        #[cfg(unix)]
        Chore::Torture(args) => torture::run(&args),
        Chore::Targets => targets::run(),
        Chore::Pytorch(args) => pytorch::run(&args),
        Chore::Report(args) => report::run(&args),
        Chore::Transformers(args) => transformers::run(&args),
        Chore::Mpi(args) => mpi::run(&args),
        Chore::Hosts(args) => hosts::run(&args),
        Chore::Kfac(args) => kfac::run(&args),
        Chore::KillSweep(args) => kill_sweep::run(&args),
        Chore::Slurm => slurm::run(),
        Chore::Wgpu => wgpu::run(),
        Chore::Cuda(args) => cuda::build(&args),
        Chore::Nccl { path } => nccl::check(path),
        Chore::Gpu(args) => cuda::test(&args),
        Chore::Bench(bench) => bench.run(),
    }
}
