//! Chores of the crate `research`, which is built only for them.

use anyhow::{Result, ensure};
use xtask::command::{cargo, run as run_command};

/// The chores of research, by name.
const NAMES: [&str; 8] =
    ["bench", "execute", "kfac", "kill-sweep", "oracle", "paper", "predict", "sweep"];
/// A line of `cargo xtask --help`.
pub(crate) const HELP: &str = "Studies, which research/README.md describes: bench, execute, kfac, kill-sweep, oracle, paper, \
    predict, sweep";

/// Runs a chore of research with its arguments, built as this program was.
pub(crate) fn run<S: AsRef<str>>(words: &[S]) -> Result<()> {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    let name = words.first().copied().unwrap_or_default();
    ensure!(NAMES.contains(&name), "there is no chore `{name}`: see cargo xtask --help");
    let mut research = cargo(["run", "--quiet", "--package", "research"]);
    research.args((!cfg!(debug_assertions)).then_some("--release"));
    run_command(research.arg("--").args(words))
}
