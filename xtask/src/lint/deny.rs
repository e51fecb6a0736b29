//! Checks dependencies against deny.toml with cargo-deny: bans, licences and sources, and
//! advisories if there is a network.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use xtask::command::{installed, root, run as run_command};

/// Manifests whose dependencies end up in programs and packages.
const MANIFESTS: [&str; 2] = ["Cargo.toml", "python/Cargo.toml"];

/// Checks the dependencies of everything that users get.
pub(crate) fn run() -> Result<()> {
    let tool = installed("cargo-deny")?;
    for manifest in MANIFESTS {
        run_command(&mut deny(&tool, manifest, &["bans", "licenses", "sources"]))?;
    }
    let mut fetch = Command::new(&tool);
    if run_command(fetch.args(["fetch", "db"]).current_dir(root())).is_err() {
        eprintln!("advisories are not checked: their list cannot be fetched");
        return Ok(());
    }
    MANIFESTS
        .iter()
        .try_for_each(|manifest| run_command(&mut deny(&tool, manifest, &["advisories"])))
}

/// Runs a check on one manifest's dependencies.
fn deny(tool: &Path, manifest: &str, checks: &[&str]) -> Command {
    let mut deny = Command::new(tool);
    deny.args(["--locked", "--workspace", "--config", "deny.toml", "--manifest-path", manifest]);
    deny.args(["check", "--hide-inclusion-graph"]).args(checks).current_dir(root());
    deny
}
