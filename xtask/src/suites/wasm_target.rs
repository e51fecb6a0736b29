//! Compiles a crate outside of the workspace to WebAssembly.
//!
//! The target comes from rustup. Where rustup cannot download it, the module is built below `target/wasm`, inside a root
//! of Debian's unstable distribution, which packages the target with its compiler. That takes root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use xtask::command::{cargo, has_target, install, read, root, run as run_command, target};

const TARGET: &str = "wasm32-unknown-unknown";
/// Debian's packages of a compiler for the target and for build scripts.
const PACKAGES: &str = "rustc,cargo,libstd-rust-dev-wasm32,lld,gcc,libc6-dev";
/// Settings of cargo in Debian's root, which has no network.
const VENDORED: &str = "\
[source.crates-io]
replace-with = \"vendor\"

[source.vendor]
directory = \"/build/vendor\"
";

/// A crate that stands on the crate of schedules and on no other of ours.
pub(super) struct Crate {
    /// Its folder, below the root.
    pub(super) folder: &'static str,
    /// Its name.
    pub(super) name: &'static str,
    /// Whether it is built as for a release.
    pub(super) is_release: bool,
}

impl Crate {
    /// Checks its format, and runs clippy on every target; warnings are errors.
    pub(super) fn lint(&self) -> Result<()> {
        run_command(cargo(["fmt", "--check", "--manifest-path"]).arg(self.manifest()))?;
        let mut clippy = self.cargo("clippy")?;
        run_command(clippy.args(["--all-targets", "--", "-D", "warnings"]))
    }

    /// A command of cargo about it, which builds below `target/wasm`.
    pub(super) fn cargo(&self, what: &str) -> Result<Command> {
        let mut command = cargo([what, "--locked", "--manifest-path"]);
        command.arg(self.manifest()).env("CARGO_TARGET_DIR", builds()?);
        Ok(command)
    }

    /// Builds its module, by Debian's compiler if that is asked for, or where rustup has no such target.
    pub(super) fn module(&self, debian: bool) -> Result<PathBuf> {
        let builds = if !debian && has_target(TARGET) {
            let mut build = self.cargo("build")?;
            build.args(["--lib", "--target", TARGET]).args(self.profile());
            run_command(&mut build)?;
            builds()?
        } else {
            self.build_in_debian(&builds()?)?
        };
        let profile = if self.is_release { "release" } else { "debug" };
        Ok(builds.join(TARGET).join(profile).join(format!("{}.wasm", self.name)))
    }

    fn manifest(&self) -> PathBuf {
        root().join(self.folder).join("Cargo.toml")
    }

    fn profile(&self) -> &[&str] {
        if self.is_release { &["--release"] } else { &[] }
    }

    /// Builds the module from a copy of its sources inside a root of Debian, offline. Returns the folder of builds.
    fn build_in_debian(&self, folder: &Path) -> Result<PathBuf> {
        let debian = debian(folder)?;
        let build = debian.join("build");
        if build.exists() {
            fs::remove_dir_all(&build)?;
        }
        for source in ["chimera-core/schedule", self.folder] {
            let copy = build.join(source);
            fs::create_dir_all(copy.parent().unwrap_or(&build))?;
            run_command(Command::new("cp").arg("-R").arg(root().join(source)).arg(copy))?;
        }
        // The root's own package is not copied, only what its crates inherit.
        let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
        let inherited = manifest.split("\n[package]\n").next().unwrap_or_default();
        fs::write(build.join("Cargo.toml"), inherited)?;
        let mut vendor = cargo(["vendor", "--locked", "--quiet", "--versioned-dirs"]);
        run_command(vendor.current_dir(root().join(self.folder)).arg(build.join("vendor")))?;
        fs::create_dir_all(build.join(".cargo"))?;
        fs::write(build.join(".cargo/config.toml"), VENDORED)?;

        let mut chroot = Command::new("chroot");
        chroot.arg(&debian).args(["/usr/bin/env", "--ignore-environment"]);
        chroot.arg(format!("--chdir=/build/{}", self.folder));
        chroot.args(["PATH=/usr/bin:/bin", "HOME=/root", "CARGO_TARGET_DIR=/builds"]);
        chroot.arg("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=wasm-ld");
        chroot.args(["cargo", "build", "--lib", "--locked", "--offline", "--target", TARGET]);
        run_command(chroot.args(self.profile()))?;
        Ok(debian.join("builds"))
    }
}

/// The folder of builds for the target.
fn builds() -> Result<PathBuf> {
    Ok(target()?.join("wasm"))
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
    make.arg("--skip=chroot/mount"); // a mount that is left over would stand in the way of a clean-up
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

/// The mirror of Debian that this machine uses; without one mmdebstrap takes its own.
fn mirror() -> Option<String> {
    let mut targets = Command::new("apt-get");
    targets.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]);
    let mirrors = read(targets.arg("Label: Debian")).ok()?;
    mirrors.lines().next().map(str::to_owned)
}
