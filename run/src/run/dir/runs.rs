//! The folder of all runs without a folder of their own: `runs/0001`, `runs/0002`, …

use std::fs::{create_dir, create_dir_all, read_dir};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The parent folder of runs whose settings name no folder.
pub const RUNS: &str = "runs";

/// Returns the runs in `parent`, newest first.
pub fn newest_first(parent: &Path) -> Vec<PathBuf> {
    let entries = read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut runs: Vec<PathBuf> = entries.filter(|path| number(path).is_some()).collect();
    runs.sort_unstable_by_key(|path| std::cmp::Reverse(number(path)));
    runs
}

/// Makes the folder `0001`, `0002`, … of `parent` that comes after all existing ones.
pub(crate) fn fresh(parent: &Path) -> Result<PathBuf> {
    create_dir_all(parent).with_context(|| format!("cannot make folder {}", parent.display()))?;
    let newest = newest_first(parent).first().and_then(|path| number(path)).unwrap_or(0);
    // Another run may make the same one at the same moment.
    for number in newest.saturating_add(1)..=u32::MAX {
        let path = parent.join(format!("{number:04}"));
        match create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => {
                return Err(e).with_context(|| format!("cannot make folder {}", path.display()));
            }
        }
    }
    bail!("{} is full: name a folder with --out", parent.display())
}

/// Returns the number of a run in its path.
fn number(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let is_number = name.len() >= 4 && name.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { name.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::fs::remove_dir;

    use super::*;

    #[test]
    fn the_newest_run_has_the_highest_number() {
        let parent = tempfile::tempdir().expect("a folder");
        let of = |name: &str| parent.path().join(name);
        assert_eq!(fresh(parent.path()).expect("made"), of("0001"));
        for name in ["0002", "0010", "notes", "0009"] {
            create_dir(of(name)).expect("made");
        }
        remove_dir(of("0001")).expect("removed");
        assert_eq!(fresh(parent.path()).expect("made"), of("0011"));
        assert_eq!(newest_first(parent.path()), ["0011", "0010", "0009", "0002"].map(of));
    }
}
