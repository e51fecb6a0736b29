//! Checks of crates before they are published. They publish nothing; most build the crates from their dependencies up.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use xtask::command::{cargo, installed, read, run as run_command};
use xtask::mpi_library::open_mpi;

/// Checks the manifests and the content of packages.
pub(crate) fn manifests() -> Result<()> {
    published()?.iter().try_for_each(check)
}

/// Packages and builds every crate as the crates registry would serve it. Compares the interfaces
/// with those of the last tag.
pub(crate) fn run() -> Result<()> {
    manifests()?;
    let (compiler, _) = open_mpi()?;
    run_command(cargo(["publish", "--workspace", "--dry-run"]).env("MPICC", compiler))?;
    semver()
}

/// A crate that is published.
pub(super) struct Published {
    pub(super) name: String,
    manifest: String,
    /// The descriptive keys of its manifest.
    about: Vec<(&'static str, bool)>,
}

/// Descriptive keys that each manifest must have.
const ABOUT: [&str; 7] =
    ["description", "license", "repository", "readme", "authors", "rust_version", "edition"];

/// All crates of the workspace, except those that must not be published.
pub(super) fn published() -> Result<Vec<Published>> {
    let metadata = read(&mut cargo(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let packages = metadata["packages"].as_array().context("cargo lists no packages")?;
    let published = packages.iter().filter(|package| package["publish"].is_null());
    let of = |package: &Value| -> Result<Published> {
        let text = |key: &str| package[key].as_str().map(str::to_owned);
        let is_there = |key| match &package[key] {
            Value::Array(values) => !values.is_empty(),
            value => value.is_string(),
        };
        Ok(Published {
            name: text("name").context("a package has no name")?,
            manifest: text("manifest_path").context("a package has no manifest")?,
            about: ABOUT.map(|key| (key, is_there(key))).to_vec(),
        })
    };
    published.map(of).collect()
}

/// Refuses a crate whose manifest does not describe it, or whose package lacks the licence or its
/// page.
fn check(package: &Published) -> Result<()> {
    let Published { name, manifest, about } = package;
    let missing: Vec<_> = about.iter().filter(|(_, is_there)| !is_there).collect();
    ensure!(missing.is_empty(), "{name}: the manifest has no {}", missing[0].0);
    let list = ["package", "--list", "--allow-dirty", "--manifest-path", manifest];
    let list = read(&mut cargo(list))?;
    for file in ["LICENSE", "README.md"] {
        ensure!(list.lines().any(|line| line == file), "{name}: {file} is left out");
    }
    eprintln!("{name}: {} files, with licence and page", list.lines().count());
    Ok(())
}

/// Refuses interface changes that the version does not announce.
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
    let sets = [
        "hack", "check", "--package", "chimera-pipeline", "--package", "chimera-pipeline-run",
        "--feature-powerset", "--depth", "2",
    ];
    run_command(Command::new(installed("cargo-hack")?).args(sets).env("MPICC", compiler))
}
