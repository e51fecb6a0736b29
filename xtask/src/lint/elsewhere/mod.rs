//! Windows and macOS, which no developer here uses: the command is type-checked for both, and the
//! Windows program is built and run under Wine.
//!
//! Type checks link nothing, so no linker or library of another system is needed. Build scripts
//! that compile C code get a compiler that does nothing. If rustup cannot install the standard
//! library of a target, a Debian system in a folder builds it from source.

use std::env;
use std::fs::{self, read_to_string};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use xtask::command::{cargo, has_target, install, read, root, run as run_command, target};

const WINDOWS: &str = "x86_64-pc-windows-gnu";
const MACOS: &str = "aarch64-apple-darwin";
/// Packages of the Debian system: compilers with the sources of the standard library, a linker for
/// Windows, and Wine.
const PACKAGES: &str = "ca-certificates,rustc,cargo,rust-src,gcc,libc6-dev,gcc-mingw-w64-x86-64-posix,\
    mingw-w64-x86-64-dev,wine64";
/// The package and features that are checked.
const COMMAND: [&str; 4] = ["--package", "chimera-pipeline", "--features", "wgpu"];
/// Folder of builds in the Debian system, where the sources are at `/sources`.
const BUILD: &str = "/sources/target/elsewhere/build";
/// Steps of the training under Wine.
const STEPS: usize = 5;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also builds the command for Windows and runs it under Wine, in a Debian system made by
    /// debootstrap in target/elsewhere; needs root and takes a quarter of an hour
    #[arg(long)]
    wine: bool,
}

/// Checks both systems, and runs the command under Wine on request.
pub(crate) fn run(args: &Args) -> Result<()> {
    for target in [WINDOWS, MACOS] {
        if has_target(target) {
            let mut check = cargo(["check"]);
            without_c(&mut check, target);
            run_command(check.args(COMMAND).args(["--target", target]))?;
        } else {
            let mut check = Debian::make()?.cargo("check", target);
            without_c(&mut check, target);
            run_command(check.args(COMMAND))?;
        }
    }
    if args.wine { wine() } else { Ok(()) }
}

/// Makes a check compile only Rust for a target.
fn without_c(check: &mut Command, target: &str) {
    for tool in ["CC", "CXX", "AR"] {
        check.env(format!("{tool}_{}", target.replace('-', "_")), "true");
    }
    check.env("SDKROOT", "/");
}

/// Builds the command for Windows, and draws and trains with it under Wine.
fn wine() -> Result<()> {
    let debian = Debian::make()?;
    let build = &mut debian.cargo("build", WINDOWS);
    run_command(build.args(["--package", "chimera-pipeline", "--bin", "chimera"]))?;
    let program = format!("{BUILD}/{WINDOWS}/debug/chimera.exe");
    let run = root().join("target/elsewhere/run");
    if run.exists() {
        fs::remove_dir_all(&run)?;
    }
    let chimera = |line: &str| {
        let mut wine = debian.command(&["/usr/bin/wine64", &program]);
        wine.env("WINEDEBUG", "-all").env("HOME", "/root").args(line.split(' '));
        wine
    };
    let drawing = read(&mut chimera("schedule show chimera --depth 4 --micro-batches 4"))?;
    ensure!(drawing.contains('\n'), "no drawing under Wine: {drawing}");
    print!("{drawing}");
    run_command(&mut chimera(&format!("train --steps {STEPS} --out target/elsewhere/run")))?;
    let metrics = read_to_string(run.join("metrics.jsonl")).context("the run has no metrics")?;
    let n_steps = metrics.lines().count();
    ensure!(n_steps == STEPS, "the run under Wine has {n_steps} steps, not {STEPS}");
    println!("chimera.exe draws, and trains {STEPS} steps under Wine");
    Ok(())
}

/// A Debian system whose compilers build the standard library of any target.
struct Debian {
    folder: PathBuf,
    /// The shared downloads of cargo.
    cargo_home: PathBuf,
}

impl Debian {
    /// Creates the Debian system if it is missing.
    fn make() -> Result<Debian> {
        let folder = target()?.join("elsewhere/debian");
        let home = env::home_dir().context("there is no home folder")?.join(".cargo");
        let cargo_home = env::var_os("CARGO_HOME").map_or(home, PathBuf::from);
        if !folder.join("usr/bin/cargo").exists() {
            if read(Command::new("debootstrap").arg("--version")).is_err() {
                install(&["debootstrap"])?;
            }
            let mut make = Command::new("debootstrap");
            make.args(["--variant=minbase", &format!("--include={PACKAGES}"), "sid"]);
            run_command(make.arg(&folder)).context("a Debian in a folder needs root")?;
        }
        Ok(Debian { folder, cargo_home })
    }

    /// A command inside the Debian system, at the root of the repository.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", include_str!("debian.sh"), "sh"]);
        command.args([&self.folder, &root(), &self.cargo_home]).args(words);
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    }

    /// A cargo command inside the Debian system, for a target whose standard library it builds.
    fn cargo(&self, subcommand: &str, target: &str) -> Command {
        let mut cargo = self.command(&["cargo", subcommand, "-Z", "build-std=std,panic_abort"]);
        cargo.args(["--target", target]).env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
        cargo.env("RUSTC_BOOTSTRAP", "1").env("CARGO_HOME", "/cargo");
        cargo.env("CARGO_TARGET_DIR", BUILD);
        cargo
    }
}
