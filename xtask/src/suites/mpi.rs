//! The transport over MPI, with Open MPI or MPICH.

use anyhow::Result;

use crate::faults::ulfm;
use crate::faults::ulfm::command::Course;
use xtask::command::{cargo, run as run_command};
use xtask::features::{PROGRAM, Tests, lint, lint_all};
use xtask::mpi_library::{MPICH, OPEN_MPI, launch};

/// Part of the names of tests over MPI that need Vulkan. `cargo xtask wgpu` runs them.
pub(crate) const ADAPTERS: &str = "adapters";
/// Numbers of ranks for the conformance suite, more than most machines have cores.
const RANKS: [&str; 3] = ["2", "4", "8"];

/// The options of the chore.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Uses MPICH instead of Open MPI; builds are then for MPICH until this runs without it
    #[arg(long)]
    mpich: bool,
    /// Instead installs Open MPI 5 from PyPI below the target folder, and kills ranks of trainings
    /// that survive it
    #[arg(long, conflicts_with = "mpich")]
    ulfm: bool,
    /// Instead runs the command for about this many minutes, with a rank killed every 20 s
    #[arg(long, requires = "ulfm", value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    minutes: Option<u16>,
    /// Seed of the choice of killed ranks
    #[arg(long, requires = "minutes", default_value_t = 0)]
    seed: u64,
}

/// Lints the transport, runs the conformance suite as ranks of a job, and trains under the launcher.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.ulfm {
        return ulfm::run(args.minutes.map(|minutes| Course { minutes, seed: args.seed }));
    }
    let library = if args.mpich { MPICH } else { OPEN_MPI };
    let (compiler, launcher) = library.find()?;
    // Bindings are made at build time, and cargo does not notice another library.
    run_command(&mut cargo(["clean", "--package", "mpi-sys", "--package", "mpi"]))?;
    lint("chimera-pipeline/mpi", Some(&compiler))?;
    lint_all(&compiler)?;
    let mut docs = cargo(["doc", "--no-deps", "--workspace", "--features", "chimera-pipeline/mpi"]);
    run_command(docs.envs([("RUSTDOCFLAGS", "-D warnings"), ("MPICC", &compiler)]))?;
    let tests = Tests::build(&compiler)?;
    let conformance = tests.program("comm-mpi", "conformance")?;
    for n in RANKS {
        run_command(&mut launch(&launcher, n, &conformance))?;
    }
    run_command(&mut tests.command("comm-mpi", "chimera_comm_mpi")?)?;
    run_command(tests.command("comm-mpi", "limits")?.env("MPIRUN", &launcher))?;
    let mut training = tests.command(PROGRAM, "mpi")?;
    run_command(training.args(["--skip", ADAPTERS]).env("MPIRUN", &launcher))
}
