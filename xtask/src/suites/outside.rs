//! Crates that are not members of the workspace, as a user would write them: a device and a model
//! with the core's public API, and a run of processes over a transport of its own. Each has few
//! lines.

use std::fs;

use anyhow::{Context, Result, ensure};
use xtask::command::{cargo, root, run as run_command};

/// A crate below `tests`, and the maximum number of lines of its own file.
struct Crate {
    folder: &'static str,
    file: &'static str,
    most_lines: usize,
}

const CRATES: [Crate; 2] = [
    Crate { folder: "outside", file: "src/lib.rs", most_lines: 150 },
    Crate { folder: "processes", file: "src/main.rs", most_lines: 120 },
];

/// Checks format and size of the crates, and runs their tests.
pub(crate) fn run() -> Result<()> {
    CRATES.iter().try_for_each(test)
}

fn test(Crate { folder, file, most_lines }: &Crate) -> Result<()> {
    let folder = root().join("tests").join(folder);
    let source = folder.join(file);
    let text = fs::read_to_string(&source).with_context(|| source.display().to_string())?;
    let n_lines = text.lines().count();
    ensure!(n_lines <= *most_lines, "{} has {n_lines} lines, not {most_lines}", source.display());
    let manifest = folder.join("Cargo.toml");
    run_command(cargo(["fmt", "--check", "--manifest-path"]).arg(&manifest))?;
    let target = root().join("target/outside");
    let tests = &mut cargo(["test", "--locked", "--manifest-path"]);
    run_command(tests.arg(&manifest).env("CARGO_TARGET_DIR", target))
}
