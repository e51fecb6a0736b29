//! The run that writes into a metrics file that a user named. A small file beside it records the run.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use chimera_formats::files::{text_regular, write};
use serde::{Deserialize, Serialize};

use super::settings_file::is_same;

/// Longer files are not ours.
const MAX_BYTES: u64 = 1 << 16;

#[derive(Serialize, Deserialize)]
struct WrittenBy {
    /// The folder of the run.
    run: PathBuf,
}

/// Returns the folder of the run that has written the metrics at `path`, if it is not `run`. A resumed run leaves such
/// metrics as they are, even if the other run has ended. Without a note beside the metrics the writer is unknown.
pub(crate) fn other_writer(path: &Path, run: &Path) -> Option<PathBuf> {
    let text = text_regular(&beside(path), MAX_BYTES).ok().flatten()?;
    let writer: WrittenBy = serde_json::from_str(&text).ok()?;
    (path.is_file() && !is_same(&writer.run, run)).then_some(writer.run)
}

/// Notes beside the metrics at `path` that they belong to `run`. Devices and pipes belong to nobody.
pub(crate) fn note_writer(path: &Path, run: &Path) -> Result<()> {
    if !path.is_file() {
        return Ok(());
    }
    let beside = beside(path);
    let note = || -> Result<()> {
        let text = serde_json::to_string_pretty(&WrittenBy { run: run.canonicalize()? })?;
        Ok(write(&beside, format!("{text}\n").as_bytes())?)
    };
    note().with_context(|| format!("cannot write {}", beside.display()))
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".written-by.json");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_of_the_run_that_wrote_them_last() {
        let folder = tempfile::tempdir().unwrap();
        let [metrics, own, other] =
            ["m.jsonl", "own", "other"].map(|name| folder.path().join(name));
        for run in [&own, &other] {
            std::fs::create_dir(run).unwrap();
        }
        std::fs::write(&metrics, "").unwrap();
        assert_eq!(other_writer(&metrics, &own), None);
        note_writer(&metrics, &other).unwrap();
        assert_eq!(other_writer(&metrics, &other), None);
        assert_eq!(other_writer(&metrics, &own), other.canonicalize().ok());
        note_writer(&metrics, &own).unwrap();
        assert_eq!(other_writer(&metrics, &own), None);
        std::fs::write(beside(&metrics), "{").unwrap();
        assert_eq!(other_writer(&metrics, &other), None);
    }
}
