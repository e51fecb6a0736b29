//! The crate in `tests/outside`, not a member of the workspace: a device and a model by the core's public API, in few
//! lines.

use std::fs;

use anyhow::{Context, Result, ensure};

use xtask::command::{cargo, root, run as run_command};

/// Lines of a device, a model of its own and its samples together.
const MOST_LINES: usize = 150;

/// Checks format and size of the crate, and runs its tests.
pub(crate) fn run() -> Result<()> {
    let folder = root().join("tests/outside");
    let library = folder.join("src/lib.rs");
    let text = fs::read_to_string(&library).with_context(|| library.display().to_string())?;
    let n_lines = text.lines().count();
    ensure!(n_lines <= MOST_LINES, "{} has {n_lines} lines, not {MOST_LINES}", library.display());
    let manifest = folder.join("Cargo.toml");
    run_command(cargo(["fmt", "--check", "--manifest-path"]).arg(&manifest))?;
    let target = root().join("target/outside");
    let tests = &mut cargo(["test", "--locked", "--manifest-path"]);
    run_command(tests.arg(&manifest).env("CARGO_TARGET_DIR", target))
}
