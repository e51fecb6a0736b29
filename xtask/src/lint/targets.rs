//! Systems that nobody here runs: the command must at least type-check for them.
//!
//! Nothing is linked, so no linker or library of theirs is needed, and what compiles C code at build time is given a
//! compiler that does nothing.

use std::process::Command;

use anyhow::{Result, bail};

use xtask::command::{cargo, read, run as run_command};

const TARGETS: [&str; 2] = ["x86_64-pc-windows-gnu", "aarch64-apple-darwin"];

/// Checks each target that is installed or can be.
pub(crate) fn run() -> Result<()> {
    let mut missing = Vec::new();
    for target in TARGETS {
        if !is_there(target)?
            && run_command(Command::new("rustup").args(["target", "add", target])).is_err()
        {
            missing.push(target);
            continue;
        }
        let mut check = cargo(["check", "--package", "chimera-pipeline", "--features", "wgpu"]);
        for tool in ["CC", "CXX", "AR"] {
            check.env(format!("{tool}_{}", target.replace('-', "_")), "true");
        }
        run_command(check.args(["--target", target]).env("SDKROOT", "/"))?;
    }
    if !missing.is_empty() {
        bail!("not checked, since rustup cannot install them here: {}", missing.join(", "));
    }
    Ok(())
}

/// Whether the standard library of a target is installed.
fn is_there(target: &str) -> Result<bool> {
    let mut rustc = Command::new("rustc");
    let folder = read(rustc.args(["--print", "target-libdir", "--target", target]))?;
    Ok(std::path::Path::new(folder.trim()).exists())
}
