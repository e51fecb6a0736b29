//! What publishing the crates asks for, checked without publishing any; each builds the crates from their dependencies up.

use std::process::Command;

use anyhow::{Result, ensure};

use xtask::command::{cargo, program, read, run as run_command, target};
use xtask::mpi_library::open_mpi;

/// Crates of the workspace that are published, by their folders.
const PUBLISHED: [&str; 12] = [
    ".", "adapters/candle", "backend-cpu", "backend-cuda", "backend-wgpu", "chimera-core",
    "chimera-core/engine", "chimera-core/models", "chimera-core/schedule", "chimera-core/testkit",
    "comm-mpi", "comm-nccl",
];

/// Packages and builds every crate as the crates registry would serve it. Compares the interfaces
/// with those of the last tag.
pub(crate) fn run() -> Result<()> {
    for folder in PUBLISHED {
        let manifest = format!("{folder}/Cargo.toml");
        let files = ["package", "--list", "--allow-dirty", "--manifest-path", &manifest];
        let files = read(&mut cargo(files))?;
        ensure!(files.lines().any(|file| file == "LICENSE"), "{manifest}: the licence is left out");
    }
    let (compiler, _) = open_mpi()?;
    run_command(cargo(["publish", "--workspace", "--dry-run"]).env("MPICC", compiler))?;
    semver()
}

/// Refuses changes of an interface that the version does not announce.
fn semver() -> Result<()> {
    let mut last = Command::new("git");
    let Ok(tag) = read(last.args(["describe", "--tags", "--abbrev=0"])) else {
        eprintln!("interfaces are not compared: there is no tag of an earlier version");
        return Ok(());
    };
    let tool = installed("cargo-semver-checks")?;
    let checks = ["semver-checks", "--workspace", "--baseline-rev", tag.trim()];
    run_command(Command::new(tool).args(checks))
}

/// Checks the library and the command with each feature and with each two of them.
pub(crate) fn powerset() -> Result<()> {
    let (compiler, _) = open_mpi()?;
    let sets =
        ["hack", "check", "--package", "chimera-pipeline", "--feature-powerset", "--depth", "2"];
    run_command(Command::new(installed("cargo-hack")?).args(sets).env("MPICC", compiler))
}

/// Installs a program from the crates registry below cargo's target folder and returns its path.
fn installed(name: &str) -> Result<std::path::PathBuf> {
    let folder = target()?.join("tools");
    run_command(cargo(["install", "--quiet", name, "--root"]).arg(&folder))?;
    Ok(folder.join("bin").join(program(name)))
}
