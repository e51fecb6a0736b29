//! The page of schedules: the module of `page/wasm` and the front end of `page/src`, built into `target/page`, which
//! `chimera schedule explore` serves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use xtask::command::{install, read, root, run as run_command, target};
use xtask::features::default_chimera;

use super::report::browser;
use super::wasm_target::Crate;

const MODULE: Crate = Crate { folder: "page/wasm", name: "page", is_release: true };

/// The parts to build or to check.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Only check the front end's types, the script of reports, and the module's crate
    #[arg(long)]
    check: bool,
    /// Also test the page in a headless browser, and take pictures of it; installs Chromium where it may
    #[arg(long, conflicts_with = "check")]
    test: bool,
    /// Command to compare with [default: the one that the tests build]
    #[arg(long, value_name = "PATH", requires = "test")]
    chimera: Option<PathBuf>,
    /// Build by Debian's compiler even where rustup has the target
    #[arg(long)]
    debian: bool,
}

/// Builds the page, or only checks it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let page = root().join("page");
    MODULE.lint()?;
    run_command(&mut MODULE.cargo("test")?)?;
    packages(&page)?;
    if args.check {
        return run_command(npm(&page).args(["run", "--silent", "check"]));
    }
    let folder = target()?.join("page");
    let module = MODULE.module(args.debian)?;
    let mut build = npm(&page);
    build.args(["run", "--silent", "build", "--", "--emptyOutDir", "--outDir"]).arg(&folder);
    run_command(build.env("CHIMERA_MODULE", module))?;
    if args.test {
        test(&page, &folder, args.chimera.clone())?;
    }
    println!("the page: chimera schedule explore --page {}", folder.display());
    Ok(())
}

/// Checks the front end without building it.
pub(crate) fn check() -> Result<()> {
    run(&Args { check: true, ..Args::default() })
}

/// The page in a browser, served by the command.
fn test(page: &Path, folder: &Path, chimera: Option<PathBuf>) -> Result<()> {
    let chimera = chimera.map_or_else(default_chimera, Ok)?;
    let out = target()?.join("page-test");
    let mut test = Command::new("node");
    test.arg(page.join("test/browser.mjs")).arg(chimera).arg(folder);
    run_command(test.arg(which(browser()?)?).arg(out))
}

/// The packages of the front end, as its lock file says, unless they are there.
fn packages(page: &Path) -> Result<()> {
    if read(Command::new("npm").arg("--version")).is_err() {
        install(&["nodejs", "npm"]).context("Node 20.19 or later, with npm, is missing")?;
    }
    let changed = |name: &str| fs::metadata(page.join(name)).and_then(|file| file.modified()).ok();
    let installed = changed("node_modules/.package-lock.json");
    if installed.is_some() && installed >= changed("package-lock.json") {
        return Ok(());
    }
    run_command(npm(page).args(["ci", "--no-audit", "--no-fund"]))
}

fn npm(page: &Path) -> Command {
    let mut npm = Command::new("npm");
    npm.current_dir(page);
    npm
}

/// The path of a program.
fn which(program: &str) -> Result<String> {
    let path = read(Command::new("sh").args(["-c", "command -v \"$0\"", program]))?;
    Ok(path.trim().to_string())
}
