//! Files that may exist before a run: kept under another name, or continued.
//!
//! A start that is refused leaves them as they were: each function that makes a file returns how to undo that.

use std::fs::{File, OpenOptions, remove_file, rename};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::observe::{Best, history};

/// Makes the metrics file in a run's folder that has no settings. A file that is there already
/// belongs to another run, to somebody else, or to this run if its settings are lost.
pub(crate) fn fresh_metrics(path: &Path) -> Result<(File, Undo)> {
    let file = File::create_new(path).map_err(|e| {
        let hint = match e.kind() {
            ErrorKind::AlreadyExists => {
                ": no config.toml beside it names its run; move it away, or choose another --out"
            }
            _ => "",
        };
        anyhow::Error::new(e).context(format!("cannot write {}{hint}", path.display()))
    })?;
    Ok((file, Undo::of_new(path)))
}

/// Opens an empty file where a user wants one. An existing file is kept under another name.
pub(crate) fn named_file(path: &Path) -> Result<(File, Undo)> {
    let open = || -> std::io::Result<(File, Undo)> {
        // `/dev/stdout` is a link to a file or a terminal, and stays.
        let is_link = || path.is_file() && !path.starts_with("/dev");
        match std::fs::symlink_metadata(path) {
            Ok(found) if found.is_file() || found.is_symlink() && is_link() => {
                let undo = Undo { made: Some(path.to_path_buf()), aside: Some(set_aside(path)?) };
                Ok((File::create_new(path)?, undo))
            }
            Ok(_) => {
                let device = OpenOptions::new().append(true).open(path)?; // or a pipe
                Ok((device, Undo { made: None, aside: None }))
            }
            Err(_) => Ok((File::create_new(path)?, Undo::of_new(path))),
        }
    };
    open().with_context(|| format!("cannot write {}", path.display()))
}

/// Removes a new file when dropped, and gives the name back to the file that had it before.
pub(crate) struct Undo {
    made: Option<PathBuf>,
    /// The new path of the file that had the name.
    aside: Option<PathBuf>,
}

impl Undo {
    /// Undoes the creation of a file where there was none.
    pub(crate) fn of_new(path: &Path) -> Undo {
        Undo { made: Some(path.to_path_buf()), aside: None }
    }

    /// Undoes nothing: the start was not refused. Calls `warn` if a file has another name now.
    pub(crate) fn give_up(mut self, warn: &dyn Fn(&str)) {
        if let (Some(made), Some(aside)) = (self.made.take(), &self.aside) {
            warn(&format!("{} existed and is kept as {}", made.display(), aside.display()));
        }
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let Some(made) = &self.made else { return };
        let _ = match &self.aside {
            Some(aside) => rename(aside, made),
            None => remove_file(made),
        };
    }
}

/// Renames a file to the first free one of `path.1`, `path.2`, …, and returns the new path.
fn set_aside(path: &Path) -> std::io::Result<PathBuf> {
    for number in 1..100_000 {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        let kept = PathBuf::from(name);
        // An empty file reserves the name, so that nobody else's file is replaced.
        match File::create_new(&kept) {
            Ok(_) => {
                return rename(path, &kept).map(|()| kept.clone()).inspect_err(|_| {
                    let _ = remove_file(&kept);
                });
            }
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Metrics that continue after a checkpoint.
pub(crate) struct Behind<'b> {
    pub(crate) path: &'b Path,
    /// The step that comes next.
    pub(crate) first: u64,
    /// Whether a user named the file.
    pub(crate) is_named: bool,
    /// Whether the run wrote to this file before.
    pub(crate) had_metrics: bool,
}

impl Behind<'_> {
    /// Cuts the file to the sound metrics of the steps before, and opens it. Calls `warn` for
    /// metrics that are lost. Also returns the best validation loss in the file.
    pub(crate) fn open(&self, warn: &dyn Fn(&str)) -> Result<(File, Option<Best>)> {
        let Behind { path, first, is_named, had_metrics } = *self;
        let place = path.display();
        let mut best = None;
        match history::before(path, first, is_named)? {
            None if had_metrics && !path.exists() => {
                warn(&format!("{place} is missing: it begins anew at step {first}"))
            }
            None => {}
            Some(kept) => {
                ensure!(
                    !kept.is_foreign(),
                    "no line of it is metrics of a step: it does not belong to this run; remove \
                     it, or choose another --metrics"
                );
                kept.cut(path, is_named)?;
                best = kept.best;
                if kept.n_damaged > 0 {
                    let n = kept.n_damaged;
                    warn(&format!(
                        "{place}: {n} line(s) that are not metrics of a step, or out of order, are dropped"
                    ));
                }
                let missing = kept.missing(first);
                if had_metrics && !missing.is_empty() {
                    let (from, to) = (missing.start, missing.end - 1);
                    warn(&format!("{place} lacks the metrics of steps {from} to {to}"));
                }
            }
        }
        Ok((history::open(path, is_named)?, best))
    }
}
