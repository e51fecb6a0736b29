//! Chores that are programs of other crates, which are built only for them.

use anyhow::{Context, Result};
use xtask::command::{cargo, run as run_command};

const RESEARCH: &[&str] = &[
    "auto-sweep", "bench", "blind", "execute", "kfac", "kill-sweep", "oracle", "paper", "predict",
    "survive", "sweep",
];

/// Packages with their chores.
const CHORES: [(&str, &[&str]); 3] = [
    ("peers", &["bitsandbytes", "peft", "pytorch", "transformers"]),
    ("research", RESEARCH),
    ("torture", &["torture"]),
];
/// The end of `cargo xtask --help`.
pub(crate) const HELP: &str = "\
Studies, which research/README.md describes: auto-sweep, bench, blind, execute, kfac, kill-sweep, oracle, paper, predict, survive, sweep
PyTorch and Hugging Face's transformers read what we write, and we read theirs: pytorch, peft, bitsandbytes, transformers
Random commands on hostile input (Linux, a C compiler, root for limits of processes): torture";

/// Runs such a chore with its arguments, with the build profile of this program.
pub(crate) fn run<S: AsRef<str>>(words: &[S]) -> Result<()> {
    let mut words = words.iter().map(AsRef::as_ref);
    let name = words.next().unwrap_or_default();
    let chore = CHORES.into_iter().find(|(_, names)| names.contains(&name));
    let (package, _) =
        chore.with_context(|| format!("there is no chore `{name}`: see cargo xtask --help"))?;
    let mut program = cargo(["run", "--quiet", "--package", package]);
    program.args((!cfg!(debug_assertions)).then_some("--release")).arg("--");
    program.args((package != name).then_some(name));
    run_command(program.args(words))
}
