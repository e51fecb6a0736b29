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
use crate::suites::{burn, cuda, gallery, mpi, nccl, outside, page, python, report, wasm, wgpu};

/// The project's chores
#[derive(Parser)]
#[command(name = "cargo xtask", max_term_width = 100, after_help = programs::HELP)]
enum Chore {
    /// Run everything that must pass, in order
    Ci,
    /// Check the format
    Format,
    /// Run clippy without warnings
    Clippy,
    /// Run all tests except those of MPI, wgpu and CUDA: unit, integration and documentation
    Test {
        /// Passed on to `cargo test`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Build the documentation without warnings
    Docs,
    /// Build the book of the pages in docs into target/book/html, and check its links and its
    /// search
    Book,
    /// Check that no crate has a forbidden dependency
    Absences,
    /// Check that no module uses one above it, and that there are no circles
    Layers,
    /// Count lines, words and sizes of the project against their limits and goals
    Counts,
    /// Check dependencies against deny.toml: bans, licences, sources, and advisories if there is a
    /// network
    Deny,
    /// Check that doc comments stand alone, and that retired phrases and identifiers stay away
    Words,
    /// Test the crates outside of the workspace: a device and a model of their own, in few lines
    Outside,
    /// Test the crate of schedules in WebAssembly, under Node: its proofs, times and drawings are
    /// those of the command
    Wasm(wasm::Args),
    /// The page of schedules for the browser, into target/page; needs Node, and rustup or root
    Page(page::Args),
    /// Tests of the stages of burn modules, a crate outside of the workspace: against plain burn, under several schedules
    Burn,
    /// Build, install and test the wheel of the Python package
    Python(python::Args),
    /// Package and build every crate as the crates registry would serve it; publishes nothing
    Publish {
        /// Only check the manifests and the content of packages
        #[arg(long)]
        check: bool,
    },
    /// Make the parts of a release in target/release-VERSION, and print the steps that a maintainer
    /// still does by hand
    Release(folder::Args),
    /// Type-check the library and the command with every feature and every two of them
    Powerset,
    /// Draw every schedule into docs/gallery
    Gallery {
        /// Only list the drawings that are not up to date
        #[arg(long)]
        check: bool,
    },
    /// Fuzz the readers of files
    Fuzz(fuzz::Args),
    /// Type-check the command for Windows and macOS, and with --wine run it as on Windows; needs
    /// rustup or root
    Elsewhere(elsewhere::Args),
    /// Open the report of a run in a headless browser: no errors, what pointing shows, and a
    /// picture; installs Chromium if it may
    Report(report::Args),
    /// Test the MPI transport: lints, conformance, and training under mpirun; installs MPI if it
    /// may
    Mpi(mpi::Args),
    /// Test ranks over MPI on two hosts, which are namespaces made here as root: one is killed or
    /// stopped; many train
    Hosts(hosts::Args),
    /// Train under a SLURM of one node, started here as root: by srun, and by a job that is
    /// requeued
    Slurm,
    /// Test conformance and training of the wgpu backend, which needs Vulkan: installed if apt-get
    /// can
    Wgpu,
    /// Build the command for NVIDIA GPUs and compile its kernels; needs no GPU
    Cuda(cuda::Args),
    /// Open the real NCCL, downloaded if no path is given; needs no GPU
    Nccl {
        /// The library
        path: Option<std::path::PathBuf>,
    },
    /// Test and measure an NVIDIA GPU of this machine
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
        Chore::Words => words::run(),
        Chore::Outside => outside::run(),
        Chore::Wasm(args) => wasm::run(&args),
        Chore::Page(args) => page::run(&args),
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
