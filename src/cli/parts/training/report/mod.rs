//! The report of a run: a self-contained HTML page, made from the files in the folder of the run.
//!
//! The page lists what is missing, since a failed run has the most to explain and the least to
//! show.

mod compared;
mod critical;
mod curve;
mod gathered;
mod lanes;
mod page;
mod ranks;
mod tables;
mod text;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use self::gathered::Gathered;
use crate::cli::parts::terminal::console::{require_folder, warn, write_whole};
use crate::formats::files;
use crate::run::{REPORT, SETTINGS};

/// Writes the page of the run in a folder, into that folder unless `out` names a file. Returns its
/// path. Warns of damaged metrics.
///
/// # Errors
/// If the folder is not that of a run, its settings cannot be read, or the page cannot be written.
pub(crate) fn write(folder: &Path, out: Option<PathBuf>) -> Result<PathBuf> {
    written(&gathered_in(folder)?, folder, out)
}

/// Writes the page that compares the runs in these folders into a file, and returns its path.
///
/// # Errors
/// If one of them is not the folder of a run, or the page cannot be written.
pub(crate) fn compare(folders: &[PathBuf], out: PathBuf) -> Result<PathBuf> {
    let n = folders.len();
    let most = compared::MOST_RUNS;
    ensure!(n <= most, "a page compares at most {most} runs, and {n} are named");
    let runs = folders.iter().map(|folder| gathered_in(folder));
    let html = compared::html(&runs.collect::<Result<Vec<_>>>()?);
    write_whole(&out, &html)?;
    Ok(out)
}

/// Gathers the files of a run that a user has named. Warns of damaged metrics.
fn gathered_in(folder: &Path) -> Result<Gathered> {
    require_folder(folder)?;
    ensure!(
        folder.join(SETTINGS).exists(),
        "{} has no {SETTINGS}, so it is not the folder of a run: name one that `chimera train` made, such as runs/0001",
        folder.display()
    );
    let gathered = Gathered::of(folder)?;
    if let Some(damage) = gathered.run.damage() {
        warn(&damage);
    }
    Ok(gathered)
}

/// Writes the page of a run that this process has trained, and whose folder it still locks.
pub(crate) fn of_own_run(folder: &Path) -> Result<PathBuf> {
    let mut gathered = Gathered::of(folder)?;
    gathered.run.conclude();
    written(&gathered, folder, None)
}

fn written(gathered: &Gathered, folder: &Path, out: Option<PathBuf>) -> Result<PathBuf> {
    let html = page::html(gathered);
    if let Some(named) = out {
        write_whole(&named, &html)?;
        return Ok(named);
    }
    let page = folder.join(REPORT);
    let written = files::write(&page, html.as_bytes());
    written.with_context(|| format!("cannot write {}", page.display()))?;
    Ok(page)
}
