//! Traces that a run must not leave.

use std::fs::{self, read_dir};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// Waits until no process of the run and no file of the launcher exists. Fails after three seconds.
pub(super) fn nothing_is_left(folder: &Path) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(3);
    loop {
        let left = processes(folder);
        let files = [files(&folder.join("tmp"))?, files(&folder.join("shm"))?].concat();
        if left.is_empty() && files.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "left behind: processes {left:?}, files {files:?}");
        sleep(Duration::from_millis(20));
    }
}

/// All files within a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in read_dir(folder).into_iter().flatten() {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path.clone());
            }
            found.push(path);
        }
    }
    Ok(found)
}

/// The living processes whose command line names the folder.
pub fn processes(folder: &Path) -> Vec<u32> {
    let folder = folder.display().to_string();
    let all = read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_of_it = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&folder)
    };
    pids.filter(is_of_it).collect()
}

/// Files that are not complete, and checkpoints without a manifest.
pub(super) fn unfinished(run: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in read_dir(run.join("checkpoints"))? {
        let path = entry?.path();
        if path.is_dir() && !path.join("manifest.json").exists() {
            found.push(path.clone());
        }
        let files = read_dir(&path)?.flatten().map(|entry| entry.path());
        found.extend(files.filter(|file| file.extension().is_some_and(|end| end == "part")));
    }
    Ok(found)
}
