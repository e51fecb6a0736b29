//! The crate of schedules in WebAssembly. The crate `tests/wasm`, outside the workspace, is compiled for
//! `wasm32-unknown-unknown` and run under Node. Its drawings, makespans and refusals must be those of the command.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use xtask::command::{install, read, root, run as run_command};
use xtask::features::default_chimera;

use super::wasm_target::Crate;

const TESTED: Crate = Crate { folder: "tests/wasm", name: "wasm", is_release: false };

/// The build of the module, and the command to compare with.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Command to compare with [default: the one that the tests build]
    #[arg(long, value_name = "PATH")]
    chimera: Option<PathBuf>,
    /// Build with Debian's compiler even if rustup has the target
    #[arg(long)]
    debian: bool,
}

/// Builds the module and compares its answers with those of the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    TESTED.lint()?;
    let module = TESTED.module(args.debian)?;
    let chimera = match &args.chimera {
        Some(chimera) => chimera.clone(),
        None => default_chimera()?,
    };
    if read(Command::new("node").arg("--version")).is_err() {
        install(&["nodejs"]).context("Node is missing")?;
    }
    let mut compare = Command::new("node");
    run_command(compare.arg(root().join("tests/wasm/compare.mjs")).arg(module).arg(chimera))
}
