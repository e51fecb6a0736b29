//! Dependencies that crates must not have, checked with `cargo tree`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Result, bail, ensure};

use xtask::command::{cargo, read, root, rust_files};

/// Crates for devices and transports, none of which the default build has.
const DEVICES: [&str; 13] = [
    "chimera-comm-mpi", "chimera-comm-nccl", "chimera-backend-cuda", "chimera-backend-wgpu",
    "candle-kernels", "candle-flash-attn", "candle-metal-kernels", "cudarc", "cudaforge", "mpi",
    "mpi-sys", "wgpu", "wgpu-hal",
];
/// Packages that core must not depend on: devices' tensors, the command line, files of settings.
const OUTSIDE_CORE: [&str; 5] =
    ["candle-core", "chimera-pipeline", "chimera-backend-cpu", "clap", "toml"];
/// Packages that the crate of schedules must not depend on: no tensor, no thread pool, no engine.
const OUTSIDE_SCHEDULE: [&str; 6] = [
    "candle-core", "chimera-pipeline-engine", "chimera-pipeline-models", "crossbeam-channel",
    "rayon", "rustix",
];
/// Packages that the engine must not depend on: no model.
const OUTSIDE_ENGINE: [&str; 3] =
    ["candle-core", "chimera-pipeline-models", "chimera-pipeline-testkit"];
/// Words that no source of the crate of schedules may contain: it starts no thread and reads nothing from the system.
const NOT_IN_SCHEDULE: [&str; 5] =
    ["std::thread", "std::fs", "std::net", "std::env", "std::process"];

/// Packages that the parts of the command must not know: no tensors, no command line, no program.
const OUTSIDE_PARTS: [&str; 4] = ["candle-core", "chimera-pipeline", "chimera-backend-cpu", "clap"];
/// Packages of the parts above the settings.
const ABOVE_SETTINGS: [&str; 4] =
    ["chimera-pipeline-formats", "chimera-pipeline-plan", "chimera-pipeline-run", "rustix"];
/// Words that the sources of the settings must not contain: they ask for files and the environment.
const NOT_IN_SETTINGS: [&str; 4] = ["std::fs", "std::net::Tcp", "std::env", "std::process"];

/// Packages that backends must not know.
const OUTSIDE_BACKENDS: [&str; 3] = ["chimera-pipeline", "clap", "toml"];

/// Packages that transports must not depend on.
const OUTSIDE_TRANSPORTS: [&str; 8] = [
    "candle-core", "chimera-pipeline", "chimera-backend-cpu", "chimera-backend-cuda", "clap",
    "toml", "aws-lc-sys", "openssl-sys",
];

/// Packages that only the command needs, and that the library without default features must not contain.
const COMMAND: [&str; 11] = [
    "anstream", "clap", "clap_complete", "clap_mangen", "ctrlc", "glob", "indicatif", "ratatui",
    "signal-hook", "tikv-jemallocator", "tiktoken-rs",
];

/// Package and what its default build must not contain.
const ABSENCES: [(&str, &[&str]); 33] = [
    ("chimera-pipeline", &DEVICES),
    ("chimera-pipeline-core", &DEVICES),
    ("chimera-pipeline-core", &OUTSIDE_CORE),
    ("chimera-pipeline-core", &["chimera-pipeline-testkit"]),
    ("chimera-pipeline-schedule", &OUTSIDE_SCHEDULE),
    ("chimera-pipeline-engine", &OUTSIDE_ENGINE),
    ("chimera-pipeline-models", &["candle-core", "chimera-pipeline-testkit"]),
    ("chimera-pipeline-device", &DEVICES),
    ("chimera-pipeline-device", &OUTSIDE_PARTS),
    ("chimera-pipeline-device", &["chimera-pipeline-settings"]),
    ("chimera-pipeline-settings", &DEVICES),
    ("chimera-pipeline-settings", &OUTSIDE_PARTS),
    ("chimera-pipeline-settings", &ABOVE_SETTINGS),
    ("chimera-pipeline-formats", &DEVICES),
    ("chimera-pipeline-formats", &OUTSIDE_PARTS),
    ("chimera-pipeline-formats", &["chimera-pipeline-plan", "chimera-pipeline-run"]),
    ("chimera-pipeline-plan", &DEVICES),
    ("chimera-pipeline-plan", &OUTSIDE_PARTS),
    ("chimera-pipeline-plan", &["chimera-pipeline-run"]),
    ("chimera-pipeline-run", &DEVICES),
    ("chimera-pipeline-run", &OUTSIDE_PARTS),
    ("chimera-backend-cpu", &DEVICES),
    ("chimera-backend-cpu", &OUTSIDE_BACKENDS),
    ("chimera-backend-cuda", &DEVICES),
    ("chimera-backend-cuda", &OUTSIDE_BACKENDS),
    ("chimera-backend-cuda", &["chimera-backend-cpu"]),
    ("chimera-backend-wgpu", &OUTSIDE_BACKENDS),
    ("chimera-backend-wgpu", &["candle-core", "chimera-backend-cpu", "chimera-backend-cuda"]),
    ("chimera-comm-mpi", &OUTSIDE_TRANSPORTS),
    ("chimera-comm-quic", &OUTSIDE_TRANSPORTS),
    ("chimera-pipeline-run", &["quinn", "tokio"]),
    ("chimera-comm-nccl", &OUTSIDE_BACKENDS),
    ("chimera-comm-nccl", &["chimera-backend-cpu"]),
];

/// The library as others embed it: build flags, and the largest allowed number of foreign crates.
const EMBEDDED: [(&[&str], usize); 2] = [
    (&["--no-default-features"], 58),
    (&["--no-default-features", "--features", "candle,tokenizers"], 137),
];

/// Refuses forbidden dependencies, and more of them than the library may have.
pub(crate) fn run() -> Result<()> {
    for (package, forbidden) in ABSENCES {
        refuse(package, &[], forbidden)?;
    }
    for (flags, most) in EMBEDDED {
        refuse("chimera-pipeline", flags, &COMMAND)?;
        let all = tree("chimera-pipeline", flags)?;
        let n = all.iter().filter(|name| !name.starts_with("chimera-")).count();
        ensure!(
            n <= most,
            "chimera-pipeline {} has {n} crates of others, and may have {most}",
            flags.join(" ")
        );
        eprintln!("chimera-pipeline {}: {n} crates of others, of at most {most}", flags.join(" "));
    }
    refuse("chimera-pipeline", &["--no-default-features", "--features=cli"], &["tokio"])?;
    refuse_words(&root().join("chimera-core/schedule/src"), &NOT_IN_SCHEDULE)?;
    refuse_words(&root().join("settings/src"), &NOT_IN_SETTINGS)
}

/// Refuses any of `words` in the sources below a folder, but for their tests.
fn refuse_words(folder: &Path, words: &[&str]) -> Result<()> {
    let files = rust_files(folder)?;
    for file in files.into_iter().filter(|file| !file.ends_with("tests.rs")) {
        let text = fs::read_to_string(&file)?;
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        if let Some(word) = words.iter().find(|word| code.contains(**word)) {
            bail!("{} names {word}, which this crate must not use", file.display());
        }
    }
    eprintln!("{}: none of {}", folder.display(), words.join(", "));
    Ok(())
}

/// Refuses any of `forbidden` in a build of `package` with these flags.
fn refuse(package: &str, flags: &[&str], forbidden: &[&str]) -> Result<()> {
    let present = dependencies(package, flags)?;
    let found: Vec<_> = forbidden.iter().filter(|name| present.contains(**name)).collect();
    let build = [&[package], flags].concat().join(" ");
    if let Some(name) = found.first() {
        bail!(
            "{package} depends on {found:?}; find out why: \
             cargo tree --package {build} --edges normal --invert {name}"
        );
    }
    eprintln!("{build}: none of {}", forbidden.join(", "));
    Ok(())
}

/// Names of all crates that a build of `package` with these flags links, without itself.
fn dependencies(package: &str, flags: &[&str]) -> Result<BTreeSet<String>> {
    let name = |line: String| line.split_whitespace().next().map(str::to_owned);
    Ok(tree(package, flags)?.into_iter().filter_map(name).filter(|name| name != package).collect())
}

/// All crates of a build of `package` with these flags and their versions, including itself.
fn tree(package: &str, flags: &[&str]) -> Result<BTreeSet<String>> {
    let args = ["tree", "--package", package, "--edges", "normal", "--prefix", "none"];
    let tree = read(cargo(args).args(flags))?;
    Ok(tree.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_found() {
        let found = dependencies("xtask", &[]).unwrap();
        assert!(found.contains("clap") && found.contains("serde_core"));
        assert!(!found.contains("xtask"));
    }
}
