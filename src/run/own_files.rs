//! The files that a run keeps in its folder, and that its outputs must not take the place of.

use std::fs::{read_dir, remove_file};
use std::path::{Path, PathBuf, absolute};

use anyhow::{Result, ensure};

use crate::settings::Config;

/// The file of a run's settings, which makes a folder a run.
pub const SETTINGS: &str = "config.toml";
/// The metrics of a run that names no other file.
pub(super) const METRICS: &str = "metrics.jsonl";
/// Files that a run, or its report, writes into its folder.
const OWN: [&str; 5] = [SETTINGS, METRICS, "lock", "pipeline.svg", "report.html"];

/// Refuses outputs that would take the place of the own files of the run in a folder, or of its checkpoints.
pub(super) fn check_outputs(config: &Config, run: &Path, checkpoints: &Path) -> Result<()> {
    for (option, path) in [
        ("metrics", &config.metrics),
        ("trace", &config.trace),
        ("log", &config.log),
        ("tensorboard", &config.tensorboard),
        ("save", &config.save),
    ] {
        let Some(path) = path else { continue };
        let place = resolved(path);
        let within = place.strip_prefix(resolved(run)).ok().and_then(Path::to_str);
        let name = within.map_or("", |name| name.strip_suffix(".part").unwrap_or(name));
        let is_own_metrics = option == "metrics" && name == METRICS;
        let is_own = (OWN.contains(&name) || is_of_a_failure(name)) && !is_own_metrics;
        ensure!(
            !is_own && !place.starts_with(resolved(checkpoints)),
            "--{option} {}: the run keeps its own files there: name another place",
            path.display()
        );
    }
    Ok(())
}

/// Where a path leads, as far as its folders are there.
pub(super) fn resolved(path: &Path) -> PathBuf {
    let path = absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let there =
        |folder: &Path| Some(folder.canonicalize().ok()?.join(path.strip_prefix(folder).ok()?));
    path.ancestors().find_map(there).unwrap_or_else(|| path.clone())
}

/// Removes what tells of an earlier failure.
pub(super) fn remove_errors(folder: &Path) -> std::io::Result<()> {
    for entry in read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_of_a_failure) {
            remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Whether a file is `error.<rank>.json`.
pub fn is_error(name: &str) -> bool {
    is_of_a_rank(name, "error.", ".json")
}

/// Whether a file is an error's, also half written, or `ops.<rank>.jsonl`.
fn is_of_a_failure(name: &str) -> bool {
    is_error(name.strip_suffix(".part").unwrap_or(name)) || is_of_a_rank(name, "ops.", ".jsonl")
}

fn is_of_a_rank(name: &str, start: &str, end: &str) -> bool {
    let rank = name.strip_prefix(start).and_then(|name| name.strip_suffix(end));
    rank.is_some_and(|rank| rank.parse::<u32>().is_ok())
}
