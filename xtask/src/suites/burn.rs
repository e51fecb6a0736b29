//! The adapter in `adapters/burn`, not a member of the workspace, since burn has more dependencies
//! than the whole workspace.

use anyhow::Result;

use xtask::command::{cargo, root, run as run_command, target};

/// Checks format and lints of the crate, and runs its tests.
pub(crate) fn run() -> Result<()> {
    let manifest = root().join("adapters/burn/Cargo.toml");
    let builds = target()?.join("burn");
    run_command(cargo(["fmt", "--check", "--manifest-path"]).arg(&manifest))?;
    let mut clippy = cargo(["clippy", "--locked", "--all-targets", "--manifest-path"]);
    clippy.arg(&manifest).args(["--", "-D", "warnings"]);
    run_command(clippy.env("CARGO_TARGET_DIR", &builds))?;
    let mut tests = cargo(["test", "--locked", "--manifest-path"]);
    run_command(tests.arg(&manifest).env("CARGO_TARGET_DIR", &builds))
}
