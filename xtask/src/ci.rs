//! Checks that a change must pass.
//!
//! The MPI transport does not build without an MPI library. So the chores for the whole workspace
//! leave it out, and it has a chore of its own.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::lint::{absences, counts, layers, words};
use crate::programs;
use crate::release::{book, publish};
use crate::suites::{cuda, gallery, mpi, outside, page, python, wgpu};
use xtask::command::{cargo, read, run as run_command};
use xtask::features::{TRANSPORT, default_tests, lint_default, lint_library};

/// The chores of CI, in order: the fast ones first. `mpi` also builds the documentation.
const CHORES: &[(&str, fn() -> Result<()>)] = &[
    ("format", format),
    ("absences", absences::run),
    ("layers", layers::run),
    ("words", words::run),
    ("counts", counts::run),
    ("publish --check", publish::manifests),
    ("clippy", clippy),
    ("test", || test(&[])),
    ("outside", outside::run),
    ("page --check", page::check),
    ("python", || python::run(&python::Args::default())),
    ("gallery", || gallery::run(true)),
    ("paper", || programs::run(&["paper", "--check"])),
    ("blind", || programs::run(&["blind", "--check"])),
    ("book", book::run),
    ("mpi", || mpi::run(&mpi::Args::default())),
    ("wgpu", wgpu::run),
    ("cuda", cuda::check),
];

/// Runs every chore, up to the first that fails.
pub(crate) fn run() -> Result<()> {
    components()?;
    for (name, chore) in CHORES {
        eprintln!("== {name}");
        let start = Instant::now();
        chore().with_context(|| format!("chore `{name}` failed; repeat it: cargo xtask {name}"))?;
        eprintln!("== {name}: {} s", start.elapsed().as_secs());
    }
    eprintln!("== all {} chores passed", CHORES.len());
    Ok(())
}

/// Checks the format of every crate.
pub(crate) fn format() -> Result<()> {
    run_command(&mut cargo(["fmt", "--all", "--check"]))
}

/// Runs clippy on every target, and on the library without the command; warnings are errors.
pub(crate) fn clippy() -> Result<()> {
    lint_default()?;
    lint_library()
}

/// Runs all tests that do not need Vulkan, with further arguments for `cargo test`.
pub(crate) fn test(args: &[String]) -> Result<()> {
    run_command(default_tests().args(args))
}

/// Builds the documentation of the default build; warnings are errors.
pub(crate) fn docs() -> Result<()> {
    let mut docs = cargo(["doc", "--workspace", "--exclude", TRANSPORT, "--no-deps"]);
    run_command(docs.env("RUSTDOCFLAGS", "-D warnings"))
}

/// Installs rustfmt and clippy if a minimal toolchain lacks them.
fn components() -> Result<()> {
    for (tool, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if read(&mut cargo([tool, "--version"])).is_err() {
            let mut rustup = Command::new("rustup");
            run_command(rustup.args(["component", "add", component]))?;
        }
    }
    Ok(())
}
