//! The project's chores: `cargo xtask NAME`. CI is `cargo xtask ci` and nothing else.

mod ci;
mod faults;
mod lint;
mod programs;
mod release;
mod suites;

use clap::Parser;

use crate::faults::{fuzz, hosts, slurm};
use crate::lint::{absences, counts, deny, elsewhere, layers, words};
use crate::release::{book, folder, publish};
use crate::suites::{burn, cuda, gallery, mpi, nccl, outside, python, report, wasm, wgpu};

/// The project's chores
#[derive(Parser)]
#[command(name = "cargo xtask", max_term_width = 100, after_help = programs::HELP)]
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
    /// Lines, words and sizes of the project, each beside its limit and its goal
    Counts,
    /// Dependencies against deny.toml: bans, licences, sources, and advisories where there is a network
    Deny,
    /// Proof that doc comments stand alone and that retired identifiers stay away
    Words {
        /// Makes the limits of constructions that plain English does without today's counts, unless there are more in all
        #[arg(long)]
        lower: bool,
    },
    /// Tests of a crate outside of the workspace: a device and a model of its own, in few lines
    Outside,
    /// The crate of schedules in WebAssembly, under Node: its proofs, times and drawings are those of the command
    Wasm(wasm::Args),
    /// Tests of the stages of burn modules, a crate outside of the workspace: against plain burn, under several schedules
    Burn,
    /// The Python package: its wheel is built, installed and tested
    Python(python::Args),
    /// Packages and builds every crate as the crates registry would serve it; publishes nothing
    Publish {
        /// Only checks what manifests say and what packages hold
        #[arg(long)]
        check: bool,
    },
    /// Makes the parts of a release in target/release-VERSION, and prints what a maintainer still does by hand
    Release(folder::Args),
    /// Type-checks the library and the command with every feature and every two of them
    Powerset,
    /// Draws every schedule into docs/gallery
    Gallery {
        /// Only says which drawings are not up to date
        #[arg(long)]
        check: bool,
    },
    /// Fuzzes the readers of files
    Fuzz(fuzz::Args),
    /// Type-checks the command for Windows and macOS, and with --wine runs it as Windows would; needs rustup or root
    Elsewhere(elsewhere::Args),
    /// The report of a run in a headless browser: no errors, what pointing tells, and a picture; installs Chromium where it may
    Report(report::Args),
    /// The transport over MPI: lints, conformance, and training under mpirun; installs MPI where it may
    Mpi(mpi::Args),
    /// Ranks over MPI on two hosts, which are namespaces made here as root: one is killed or stopped; many train
    Hosts(hosts::Args),
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
    #[command(external_subcommand)]
    Program(Vec<String>),
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
        Chore::Counts => counts::run(),
        Chore::Deny => deny::run(),
        Chore::Words { lower } => words::run(lower),
        Chore::Outside => outside::run(),
        Chore::Wasm(args) => wasm::run(&args),
        Chore::Burn => burn::run(),
        Chore::Python(args) => python::run(&args),
        Chore::Publish { check: true } => publish::manifests(),
        Chore::Publish { check: false } => publish::run(),
        Chore::Release(args) => folder::run(&args),
        Chore::Powerset => publish::powerset(),
        Chore::Gallery { check } => gallery::run(check),
        Chore::Fuzz(args) => fuzz::run(&args),
        Chore::Elsewhere(args) => elsewhere::run(&args),
        Chore::Report(args) => report::run(&args),
        Chore::Mpi(args) => mpi::run(&args),
        Chore::Hosts(args) => hosts::run(&args),
        Chore::Slurm => slurm::run(),
        Chore::Wgpu => wgpu::run(),
        Chore::Cuda(args) => cuda::build(&args),
        Chore::Nccl { path } => nccl::check(path),
        Chore::Gpu(args) => cuda::test(&args),
        Chore::Program(words) => programs::run(&words),
    }
}
