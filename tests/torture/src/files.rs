//! The files that cases start from: their names, and how to copy them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

/// The options of a tiny training.
pub(super) const TINY: &str = "--layers 4 --hidden 16 --heads 2 --context 16 --depth 2 --micro-batches 4 \
                               --micro-batch-size 1 --threads 1";

/// All files for commands that succeed.
pub(super) const ALL: [&str; 11] = [
    "text", "run", "model", "run.toml", "slurm.toml", "schedule.json", "schedule.csv",
    "tokenizer.json", "data.bin", "data.bin.json", "data.bin.tokenizer.json",
];

/// Lets every user write into a folder and everything in it.
pub(super) fn open_to_all(place: &Path) -> Result<()> {
    fs::set_permissions(place, Permissions::from_mode(0o777))?;
    if place.is_dir() {
        for entry in fs::read_dir(place)? {
            open_to_all(&entry?.path())?;
        }
    }
    Ok(())
}

/// Copies a file, or a folder with everything in it.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    let place = || format!("cannot copy {}", from.display());
    if !from.is_dir() {
        return fs::copy(from, to).map(drop).with_context(place);
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(place)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}
