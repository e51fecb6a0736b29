//! The report of a run: one page of HTML that needs nothing else, made of what the run left in its folder.
//!
//! What is not there is said on the page, since a run that failed has most to tell and least to show.

mod curve;
mod gathered;
mod lanes;
mod page;
mod tables;
mod text;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use self::gathered::Gathered;
use crate::cli::parts::terminal::console::{require_folder, warn, write_whole};
use crate::formats::files;
use crate::run::{REPORT, SETTINGS};

/// Writes the page of the run in a folder, into that folder unless `out` names a file. Returns where it is. Warns of metrics
/// that are left out.
///
/// # Errors
/// If the folder is no run's, its settings cannot be read, or the page cannot be written.
pub(crate) fn write(folder: &Path, out: Option<PathBuf>) -> Result<PathBuf> {
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
    written(&gathered, folder, out)
}

/// Writes the page of a run that this process has trained, and whose folder it still holds.
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
