//! The program that proves bounds on orders. It is outside of the workspace, since HiGHS takes long
//! to build.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use xtask::command::{cargo, install, program, read, run as run_command, target};

/// Tests the oracle.
pub(crate) fn test() -> Result<()> {
    needs()?;
    let args = ["test", "--release", "--manifest-path", MANIFEST];
    run_command(cargo(args).env("CARGO_TARGET_DIR", folder()?))
}

/// The built oracle, with a time limit.
pub(crate) struct Oracle {
    program: PathBuf,
    seconds: f64,
}

/// Bounds on the shortest order.
pub(crate) struct Proof {
    /// A lower bound: no order is shorter.
    pub(crate) at_least: f64,
    /// The length of a known order.
    pub(crate) makespan: f64,
}

impl Oracle {
    /// Builds the oracle with a time limit of `seconds` per proof.
    pub(crate) fn build(seconds: f64) -> Result<Oracle> {
        needs()?;
        let args = ["build", "--release", "--manifest-path", MANIFEST];
        let folder = folder()?;
        run_command(cargo(args).env("CARGO_TARGET_DIR", &folder))?;
        Ok(Oracle { program: folder.join("release").join(program("oracle")), seconds })
    }

    /// Returns bounds on the shortest order of the ops in `timetable`, where a forward takes 1. All
    /// orders are known to take at least `above`.
    pub(crate) fn prove(
        &self,
        timetable: &Path,
        backward: f64,
        max_peak: f64,
        above: f64,
    ) -> Result<Proof> {
        let mut command = Command::new(&self.program);
        command.arg(timetable);
        let options = [
            ("backward", backward),
            ("memory-cap", max_peak),
            ("above", above),
            ("seconds", self.seconds),
        ];
        for (name, value) in options {
            command.arg(format!("--{name}={value}"));
        }
        let answer: Value = serde_json::from_str(&read(&mut command)?)?;
        let field =
            |name: &str| answer[name].as_f64().with_context(|| format!("no {name}: {answer}"));
        Ok(Proof { at_least: field("at_least")?, makespan: field("makespan")? })
    }
}

const MANIFEST: &str = "research/oracle/Cargo.toml";

/// The folder of its build.
fn folder() -> Result<PathBuf> {
    Ok(target()?.join("oracle"))
}

/// Installs the build dependencies of HiGHS, if Debian's packages are available.
fn needs() -> Result<()> {
    if read(Command::new("cmake").arg("--version")).is_ok() {
        return Ok(());
    }
    install(&["cmake", "libclang-dev"])
}
