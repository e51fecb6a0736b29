//! Files of a run that may be there before it: kept under another name, or gone on with.
//!
//! A start that is refused leaves them as they were: what makes a file tells how to undo that.

use std::fs::{File, OpenOptions, remove_file, rename};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::observe::{Best, history};

/// Makes the metrics in the folder of a run without settings: those that are there belong to another run, to somebody
/// else, or to this run, whose settings are lost.
pub(crate) fn fresh_metrics(path: &Path) -> Result<(File, Undo)> {
    let file = File::create_new(path).map_err(|e| {
        let hint = match e.kind() {
            ErrorKind::AlreadyExists => {
                ": no config.toml beside it says of which run it is; move it away, or choose another --out"
            }
            _ => "",
        };
        anyhow::Error::new(e).context(format!("cannot write {}{hint}", path.display()))
    })?;
    Ok((file, Undo::of_new(path)))
}

/// Opens an empty file where a user wants one. A file that is there is kept under another name.
pub(crate) fn named_file(path: &Path) -> Result<(File, Undo)> {
    let open = || -> std::io::Result<(File, Undo)> {
        // `/dev/stdout` is a link to whatever that is, and stays.
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

/// Undoes, when it is dropped, that a start made a file: what had its name before gets it back.
pub(crate) struct Undo {
    made: Option<PathBuf>,
    /// Where what had its name is kept.
    aside: Option<PathBuf>,
}

impl Undo {
    /// Undoes that there is a file where there was none.
    pub(crate) fn of_new(path: &Path) -> Undo {
        Undo { made: Some(path.to_path_buf()), aside: None }
    }

    /// Undoes nothing: the start was not refused. `warn` is told of a file that has another name now.
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

/// Renames a file to the first free one of `path.1`, `path.2`, …, and returns that.
fn set_aside(path: &Path) -> std::io::Result<PathBuf> {
    for number in 1..100_000 {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        let kept = PathBuf::from(name);
        // An empty file holds the name, so that nobody else's is replaced.
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

/// Metrics that are to go on behind a checkpoint.
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
    /// Cuts the file to what is sound of the steps before, and opens it; `warn` is told of what is lost. Returns the
    /// best validation loss in it, too.
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
                    "no line of it is metrics of a step: it is not of this run; remove it, or choose another --metrics"
                );
                kept.cut(path, is_named)?;
                best = kept.best;
                if kept.n_damaged > 0 {
                    let n = kept.n_damaged;
                    warn(&format!(
                        "{place}: {n} line(s) that are no metrics of a step, or out of order, are dropped"
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
