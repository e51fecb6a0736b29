//! The Python package in `python`, not a member of the workspace: its wheel is built, installed and
//! tested.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use xtask::command::{cargo, files, given_python, root, run as run_command, target};
use xtask::features::default_chimera;

/// The options of the chore.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Runs the tests that train with PyTorch too
    #[arg(long)]
    torch: bool,
    /// Python that has maturin, mypy, pytest and, with --torch, torch, numpy, transformers and
    /// accelerate [default: a fresh one in target/python-package, which downloads them]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Then calls the package at random for this many seconds: no call may panic, hang, or raise
    /// without a message
    #[arg(long, value_name = "SECONDS")]
    fuzz: Option<u32>,
}

/// Checks format, lints and types, builds the wheel, installs it, and runs its tests.
pub(crate) fn run(args: &Args) -> Result<()> {
    let torch = if args.torch { "torch numpy transformers accelerate lightning" } else { "" };
    let packages = format!("maturin mypy pytest {torch}");
    let packages: Vec<_> = packages.split_whitespace().collect();
    let python = given_python(args.python.as_deref(), "python-package", &packages)?;
    let (folder, builds) = (root().join("python"), target()?.join("python"));
    let manifest = folder.join("Cargo.toml");
    run_command(cargo(["fmt", "--check", "--manifest-path"]).arg(&manifest))?;
    let mut clippy = cargo(["clippy", "--locked", "--manifest-path"]);
    clippy.arg(&manifest).args(["--", "-D", "warnings"]);
    run_command(clippy.env("CARGO_TARGET_DIR", &builds).env("PYO3_PYTHON", &python))?;

    let mut types = Command::new(&python);
    run_command(types.args(["-m", "mypy", "--no-incremental"]).current_dir(&folder))?;

    let wheels = builds.join("wheels");
    if wheels.exists() {
        fs::remove_dir_all(&wheels)?;
    }
    let mut build = Command::new(&python);
    build.args(["-m", "maturin", "build", "--quiet", "--locked", "--manifest-path"]);
    build.arg(&manifest).arg("--interpreter").arg(&python).arg("--out").arg(&wheels);
    run_command(build.env("CARGO_TARGET_DIR", &builds))?;
    let wheel = files(&wheels)?.pop().context("maturin built no wheel")?;
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall"]);
    run_command(install.arg(&wheel))?;

    let mut tests = Command::new(&python);
    tests.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"]).arg(folder.join("tests"));
    if !args.torch {
        tests.args(["--ignore"]).arg(folder.join("tests/torch"));
    }
    // Outside of the sources, so that the installed package is imported.
    run_command(tests.env("CHIMERA", default_chimera()?).current_dir(&wheels))?;
    let Some(seconds) = args.fuzz else { return Ok(()) };
    let mut fuzz = Command::new(&python);
    fuzz.arg(folder.join("tests/fuzz.py")).arg(seconds.to_string());
    run_command(fuzz.current_dir(&wheels))
}
