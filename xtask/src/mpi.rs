//! The transport over MPI, with Open MPI or MPICH.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::{Programs, cargo, install, read, run as run_command};
use crate::features::{PROGRAM, Tests, lint, lint_all};
use crate::ulfm;
use crate::ulfm_command::Course;

/// The crate that needs an MPI library to be built.
pub(crate) const TRANSPORT: &str = "chimera-comm-mpi";
/// In the names of tests over MPI that need Vulkan, and are `cargo xtask wgpu`'s.
pub(crate) const ADAPTERS: &str = "adapters";
/// Ranks of the conformance suite, more than most machines have cores.
const RANKS: [&str; 3] = ["2", "4", "8"];
/// Seconds after which a launcher ends its ranks: a test that hangs is one that fails.
const PATIENCE: &str = "200";

/// With which library.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Uses MPICH in place of Open MPI; what has been built is then for MPICH, until this runs without it
    #[arg(long)]
    mpich: bool,
    /// Instead installs Open MPI 5 from PyPI below the target folder, and kills ranks of trainings that survive it
    #[arg(long, conflicts_with = "mpich")]
    ulfm: bool,
    /// Instead has one run of the command train for about so long, with a rank killed every 20 s
    #[arg(long, requires = "ulfm", value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    minutes: Option<u16>,
    /// Seed by which it is drawn which rank that is
    #[arg(long, requires = "minutes", default_value_t = 0)]
    seed: u64,
}

/// An MPI library with its launcher.
struct Library {
    name: &'static str,
    /// The compilers it may have, the most telling name first.
    compilers: [&'static str; 2],
    launchers: [&'static str; 2],
    packages: &'static [&'static str],
}

const OPEN_MPI: Library = Library {
    name: "Open MPI",
    compilers: ["mpicc.openmpi", "mpicc"],
    launchers: ["mpirun.openmpi", "mpirun"],
    packages: &["libopenmpi-dev", "openmpi-bin", "libclang-dev"],
};
const MPICH: Library = Library {
    name: "MPICH",
    compilers: ["mpicc.mpich", "mpicc"],
    launchers: ["mpiexec.mpich", "mpiexec"],
    packages: &["libmpich-dev", "mpich", "libclang-dev"],
};

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

/// Open MPI's compiler and launcher, installed first if they are not there.
pub(crate) fn open_mpi() -> Result<(String, String)> {
    OPEN_MPI.find()
}

/// A build of the command with Open MPI.
pub(crate) struct Built {
    /// The library's compiler.
    pub(crate) compiler: String,
    pub(crate) launcher: String,
    pub(crate) program: PathBuf,
}

/// Builds the command with Open MPI.
pub(crate) fn build(is_release: bool) -> Result<Built> {
    let (compiler, launcher) = open_mpi()?;
    let mut build = cargo(["build", "--package", "chimera-pipeline", "--features", "mpi"]);
    build.args(["--bin", "chimera"]).args(is_release.then_some("--release"));
    let built = Programs::build(build.env("MPICC", &compiler))?;
    Ok(Built { compiler, launcher, program: built.program(PROGRAM, "chimera")? })
}

/// `program` as ranks of a job, as any user, also root in a container, and on however few cores.
pub(crate) fn launch(launcher: &str, n: &str, program: &Path) -> Command {
    let mut command = Command::new(launcher);
    command.args(["-n", n]).arg(program).envs([
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("MPIEXEC_TIMEOUT", PATIENCE),
    ]);
    command
}

impl Library {
    /// Compiler and launcher, installed first if they are not there.
    fn find(&self) -> Result<(String, String)> {
        if let Some(found) = self.installed() {
            return Ok(found);
        }
        install(self.packages).with_context(|| {
            format!("{} is missing: a compiler wrapper, a launcher, and libclang", self.name)
        })?;
        self.installed().with_context(|| {
            let packages = self.packages.join(" ");
            format!("{packages} are installed, but {} is still not found", self.name)
        })
    }

    fn installed(&self) -> Option<(String, String)> {
        let compiler = self.compilers.into_iter().find(|c| self.says("-show", c))?;
        let launcher = self.launchers.into_iter().find(|l| self.says("--version", l))?;
        let libraries = read(Command::new("ldconfig").arg("-p"));
        if libraries.is_ok_and(|all| !all.contains("libclang")) {
            return None; // the bindings are made with it
        }
        Some((compiler.into(), launcher.into()))
    }

    /// Whether `program` is there and of this library.
    fn says(&self, option: &str, program: &str) -> bool {
        let said = read(Command::new(program).arg(option));
        let mine =
            if self.name == MPICH.name { ["mpich", "hydra"] } else { ["openmpi", "open mpi"] };
        said.is_ok_and(|text| mine.iter().any(|word| text.to_lowercase().contains(word)))
    }
}
