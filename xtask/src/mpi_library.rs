//! MPI libraries: their compilers and launchers, and builds of the command with Open MPI.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::{Programs, cargo, install, read};
use crate::features::PROGRAM;

/// Seconds after which a launcher ends its ranks: a test that hangs is one that fails.
const PATIENCE: &str = "200";

/// An MPI library with its launcher.
pub struct Library {
    name: &'static str,
    /// The compilers it may have, the most specific name first.
    compilers: [&'static str; 2],
    launchers: [&'static str; 2],
    packages: &'static [&'static str],
}

/// Open MPI.
pub const OPEN_MPI: Library = Library {
    name: "Open MPI",
    compilers: ["mpicc.openmpi", "mpicc"],
    launchers: ["mpirun.openmpi", "mpirun"],
    packages: &["libopenmpi-dev", "openmpi-bin", "libclang-dev"],
};
/// MPICH.
pub const MPICH: Library = Library {
    name: "MPICH",
    compilers: ["mpicc.mpich", "mpicc"],
    launchers: ["mpiexec.mpich", "mpiexec"],
    packages: &["libmpich-dev", "mpich", "libclang-dev"],
};

/// Open MPI's compiler and launcher, installed first if they are missing.
pub fn open_mpi() -> Result<(String, String)> {
    OPEN_MPI.find()
}

/// A build of the command with Open MPI.
pub struct Built {
    /// The library's compiler.
    pub compiler: String,
    /// The library's launcher.
    pub launcher: String,
    /// The command.
    pub program: PathBuf,
}

/// Builds the command with Open MPI.
pub fn build(is_release: bool) -> Result<Built> {
    let (compiler, launcher) = open_mpi()?;
    let mut build = cargo(["build", "--package", "chimera-pipeline", "--features", "mpi"]);
    build.args(["--bin", "chimera"]).args(is_release.then_some("--release"));
    let built = Programs::build(build.env("MPICC", &compiler))?;
    Ok(Built { compiler, launcher, program: built.program(PROGRAM, "chimera")? })
}

/// Starts `program` as the ranks of a job. It works for any user, also root in a container, and on
/// few cores.
pub fn launch(launcher: &str, n: &str, program: &Path) -> Command {
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
    /// The compiler and the launcher, installed first if they are missing.
    pub fn find(&self) -> Result<(String, String)> {
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
            return None; // the bindings are generated with it
        }
        Some((compiler.into(), launcher.into()))
    }

    /// Returns true if `program` exists and belongs to this library.
    fn says(&self, option: &str, program: &str) -> bool {
        let said = read(Command::new(program).arg(option));
        let mine =
            if self.name == MPICH.name { ["mpich", "hydra"] } else { ["openmpi", "open mpi"] };
        said.is_ok_and(|text| mine.iter().any(|word| text.to_lowercase().contains(word)))
    }
}
