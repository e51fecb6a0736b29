//! The crate of schedules in WebAssembly. The crate `tests/wasm`, outside the workspace, is compiled for
//! `wasm32-unknown-unknown` and run under Node. Its drawings, makespans and refusals must be those of the command.
//!
//! The target comes from rustup. Where rustup cannot download it, the module is built below `target/wasm`, inside a root
//! of Debian's unstable distribution, which packages the target with its compiler. That takes root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use xtask::command::{cargo, has_target, install, read, root, run as run_command, target};
use xtask::features::default_chimera;

const TARGET: &str = "wasm32-unknown-unknown";
/// The module's path below a folder of builds.
const MODULE: &str = "wasm32-unknown-unknown/debug/wasm.wasm";
/// Debian's packages of a compiler for the target and for build scripts.
const PACKAGES: &str = "rustc,cargo,libstd-rust-dev-wasm32,lld,gcc,libc6-dev";
/// Settings of cargo in Debian's root, which has no network.
const VENDORED: &str = "\
[source.crates-io]
replace-with = \"vendor\"

[source.vendor]
directory = \"/build/vendor\"
";

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
    let folder = target()?.join("wasm");
    let manifest = root().join("tests/wasm/Cargo.toml");
    run_command(cargo(["fmt", "--check", "--manifest-path"]).arg(&manifest))?;
    let mut clippy = cargo(["clippy", "--locked", "--manifest-path"]);
    clippy.arg(&manifest).args(["--", "-D", "warnings"]);
    run_command(clippy.env("CARGO_TARGET_DIR", &folder))?;
    let module = if !args.debian && has_target(TARGET) {
        let mut build = cargo(["build", "--locked", "--target", TARGET, "--manifest-path"]);
        run_command(build.arg(&manifest).env("CARGO_TARGET_DIR", &folder))?;
        folder.join(MODULE)
    } else {
        build_in_debian(&folder)?
    };
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

/// Builds the module from a copy of its sources inside a root of Debian, offline.
fn build_in_debian(folder: &Path) -> Result<PathBuf> {
    let debian = debian(folder)?;
    let build = debian.join("build");
    if build.exists() {
        fs::remove_dir_all(&build)?;
    }
    for source in ["chimera-core/schedule", "tests/wasm"] {
        let copy = build.join(source);
        fs::create_dir_all(copy.parent().unwrap_or(&build))?;
        run_command(Command::new("cp").arg("-R").arg(root().join(source)).arg(copy))?;
    }
    // The root's own package is not copied, only what its crates inherit.
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let inherited = manifest.split("\n[package]\n").next().unwrap_or_default();
    fs::write(build.join("Cargo.toml"), inherited)?;
    let mut vendor = cargo(["vendor", "--locked", "--quiet", "--versioned-dirs"]);
    run_command(vendor.current_dir(root().join("tests/wasm")).arg(build.join("vendor")))?;
    fs::create_dir_all(build.join(".cargo"))?;
    fs::write(build.join(".cargo/config.toml"), VENDORED)?;

    let mut chroot = Command::new("chroot");
    chroot.arg(&debian).args(["/usr/bin/env", "--ignore-environment", "--chdir=/build/tests/wasm"]);
    chroot.args(["PATH=/usr/bin:/bin", "HOME=/root", "CARGO_TARGET_DIR=/builds"]);
    chroot.arg("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=wasm-ld");
    run_command(chroot.args(["cargo", "build", "--locked", "--offline", "--target", TARGET]))?;
    Ok(debian.join("builds").join(MODULE))
}

/// The root of Debian with the compiler, made first if there is none.
fn debian(folder: &Path) -> Result<PathBuf> {
    let debian = folder.join("debian");
    if debian.exists() {
        return Ok(debian);
    }
    if read(Command::new("mmdebstrap").arg("--version")).is_err() {
        install(&["mmdebstrap"]).context("mmdebstrap is missing")?;
    }
    let unfinished = folder.join("debian.unfinished");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)?;
    }
    fs::create_dir_all(folder)?;
    let mut make = Command::new("mmdebstrap");
    make.arg("--variant=apt").arg(format!("--include={PACKAGES}"));
    make.arg("--skip=chroot/mount"); // a left-over mount would prevent a clean-up
    // A mirror may be out of date; signatures are checked all the same.
    make.args(["--aptopt=Acquire::Check-Valid-Until \"false\"", "sid"]).arg(&unfinished);
    run_command(make.args(mirror())).with_context(|| {
        format!(
            "rustup has no {TARGET} here, and Debian's compiler, which has, takes root to set up"
        )
    })?;
    fs::rename(&unfinished, &debian)?;
    Ok(debian)
}

/// The Debian mirror that this machine uses. Without one mmdebstrap uses its own.
fn mirror() -> Option<String> {
    let mut targets = Command::new("apt-get");
    targets.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]);
    let mirrors = read(targets.arg("Label: Debian")).ok()?;
    mirrors.lines().next().map(str::to_owned)
}
