//! The build with every feature. All chores that test a part of it share it, since each set of
//! features is built from the dependencies up and takes minutes and gigabytes.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::command::{Programs, cargo, root, run};

/// The crate that needs an MPI library to be built.
pub const TRANSPORT: &str = "chimera-comm-mpi";
/// Features that the default build leaves out.
const ALL: &str =
    "chimera-pipeline/mpi,chimera-pipeline/wgpu,chimera-pipeline/nccl,chimera-comm-nccl/cuda";

/// Targets that test these features.
const TARGETS: [&str; 10] = [
    "--lib", "--test=conformance", // of the transport over MPI, and of the backends
    "--test=limits", "--test=staged", "--test=validation", "--test=emulated_*", "--test=mpi",
    "--test=wgpu", "--test=cuda", "--example=compile",
];

/// The folder of a crate of the workspace, below its root.
pub type Folder = &'static str;
/// The folder of the command.
pub const PROGRAM: Folder = "";

/// Runs clippy on libraries and programs of every crate with `features`; warnings are errors.
/// Without an MPI compiler the MPI transport is left out.
///
/// All crates are selected whatever the features, so that their dependencies are built in one way,
/// and once.
pub fn lint(features: &str, mpi_compiler: Option<&str>) -> Result<()> {
    clippy(&["--lib", "--bins", "--features", features], mpi_compiler)
}

/// Runs clippy on every target of the default build; warnings are errors.
pub fn lint_default() -> Result<()> {
    clippy(&["--all-targets"], None)
}

/// Runs clippy on every target of every crate with every feature; warnings are errors.
pub fn lint_all(mpi_compiler: &str) -> Result<()> {
    clippy(&["--all-targets", "--features", ALL], Some(mpi_compiler))
}

fn clippy(what: &[&str], mpi_compiler: Option<&str>) -> Result<()> {
    let mut clippy = cargo(["clippy", "--workspace"]);
    match mpi_compiler {
        Some(compiler) => clippy.env("MPICC", compiler),
        None => clippy.args(["--exclude", TRANSPORT]),
    };
    run(clippy.args(what).args(["--", "-D", "warnings"]))
}

/// Runs clippy on the library without the dependencies of the command; warnings are errors.
pub fn lint_library() -> Result<()> {
    let library = [
        "clippy", "--package", "chimera-pipeline", "--package", "chimera-pipeline-run", "--lib",
        "--no-default-features",
    ];
    run(cargo(library).args(["--", "-D", "warnings"]))
}

/// `cargo test` for everything that needs neither MPI nor Vulkan.
pub fn default_tests() -> Command {
    cargo(["test", "--workspace", "--exclude", TRANSPORT, "--exclude", "chimera-backend-wgpu"])
}

/// The command that the default build's tests start, which exists already if they have run. A build
/// of only its package would request other features of the dependencies, and rebuild all of them.
pub fn default_chimera() -> Result<PathBuf> {
    Programs::build(default_tests().args(["--no-run", "--test=cli"]))?.program(PROGRAM, "chimera")
}

/// The programs that test features outside the default build.
pub struct Tests(Programs);

impl Tests {
    /// Builds the programs with the MPI of a compiler.
    pub fn build(mpi_compiler: &str) -> Result<Self> {
        let mut build = cargo(["test", "--workspace", "--features", ALL, "--no-run"]);
        Ok(Self(Programs::build(build.args(TARGETS).env("MPICC", mpi_compiler))?))
    }

    /// The program of a target.
    pub fn program(&self, folder: Folder, target: &str) -> Result<PathBuf> {
        self.0.program(folder, target)
    }

    /// Returns a test program as a command that starts in the folder of its crate, as `cargo test`
    /// does.
    pub fn command(&self, folder: Folder, target: &str) -> Result<Command> {
        let mut command = Command::new(self.program(folder, target)?);
        command.current_dir(root().join(folder));
        Ok(command)
    }
}
