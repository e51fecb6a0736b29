//! The program that proves how short orders can be: not in the workspace, since HiGHS takes long to build.

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

/// The oracle, built, with a limit of time.
pub(crate) struct Oracle {
    program: PathBuf,
    seconds: f64,
}

/// Bounds on the shortest order.
pub(crate) struct Proof {
    /// None is shorter.
    pub(crate) at_least: f64,
    /// One takes so long.
    pub(crate) makespan: f64,
}

impl Oracle {
    /// Builds it; it will try `seconds` each time.
    pub(crate) fn build(seconds: f64) -> Result<Oracle> {
        needs()?;
        let args = ["build", "--release", "--manifest-path", MANIFEST];
        let folder = folder()?;
        run_command(cargo(args).env("CARGO_TARGET_DIR", &folder))?;
        Ok(Oracle { program: folder.join("release").join(program("oracle")), seconds })
    }

    /// Returns bounds on the shortest order of the ops in `timetable`, a forward taking 1, none of which is known
    /// to take less than `above`.
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

/// The folder in which it is built.
fn folder() -> Result<PathBuf> {
    Ok(target()?.join("oracle"))
}

/// Installs what HiGHS is built with, where Debian's packages are.
fn needs() -> Result<()> {
    if read(Command::new("cmake").arg("--version")).is_ok() {
        return Ok(());
    }
    install(&["cmake", "libclang-dev"])
}
