//! Outputs of a run outside of its own folder: never in the folder of another run, never where
//! another run writes; earlier files are kept under another name, or continued.
//!
//! A start that is refused leaves them as they were: each function that makes a file returns how to undo that.

use std::fs::{File, OpenOptions, remove_file, rename};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use chimera_formats::checkpoint::Store;
use chimera_formats::files::disk::with_ending;
use chimera_formats::files::prepare_dir;
use chimera_settings::Config;

use super::layout::{METRICS, SUMMARY, check_outputs, is_run, outputs, resolved};
use super::lock::{LOCK, Lock, is_at_work};
use crate::observe::{Best, history};

/// Locks the files and folders of `config` that two runs must not write to at once, for as long as the locks live.
///
/// # Errors
/// If another run writes to one of them, or it cannot be written to.
pub(crate) fn claim_outputs(config: &Config) -> Result<Vec<Lock>> {
    let mut claims = Vec::new();
    for (option, path) in [("metrics", &config.output.metrics), ("trace", &config.output.trace)] {
        if let Some(path) = path.as_deref().filter(|path| is_lockable(path)) {
            claims.push(Lock::of_output(option, path, lock_of(path))?);
        }
    }
    if let Some(dir) = &config.output.log {
        let place = || format!("cannot write a log into {}", dir.display());
        prepare_dir(dir).with_context(place)?;
        claims.push(Lock::of_output("log", dir, dir.join("log.lock"))?);
    }
    Ok(claims)
}

/// Returns true for a file, even one that does not exist yet. Devices and pipes belong to nobody.
fn is_lockable(path: &Path) -> bool {
    path.metadata().map_or(true, |found| found.is_file())
}

/// Returns the path of a file's lock, which is the same for every link to the file.
fn lock_of(path: &Path) -> PathBuf {
    with_ending(&resolved(path), ".lock")
}

/// Refuses outputs that would replace the run's own files or its inputs, or lie in the folder of another run.
pub(crate) fn check_places(config: &Config, run: &Path, checkpoints: &Path) -> Result<()> {
    check_outputs(config, run, checkpoints)?;
    for (option, path) in outputs(config) {
        if let Some(path) = path {
            check_foreign(option, path, run)?;
        }
    }
    Ok(())
}

/// Refuses an output that is, or lies in, the folder of a run other than `own`.
fn check_foreign(option: &str, path: &Path, own: &Path) -> Result<()> {
    if let Some(other) = run_around(&resolved(path), &resolved(own)) {
        bail!(
            "--{option} {}: the run in {} keeps its files there: name another place",
            path.display(),
            other.display()
        );
    }
    Ok(())
}

/// Refuses a new run in the folder of another run, which may prune, replace or remove what is there.
pub(crate) fn check_nested(out: &Path) -> Result<()> {
    let place = resolved(out);
    let above = place.parent().filter(|_| !is_run(out));
    if let Some(other) = above.and_then(|above| run_around(above, &place)) {
        bail!(
            "{} is in the folder of the run in {}: choose another --out",
            out.display(),
            other.display()
        );
    }
    Ok(())
}

/// Returns the innermost folder of a run that is `place` or above it, and lies outside of `own`.
fn run_around<'p>(place: &'p Path, own: &Path) -> Option<&'p Path> {
    place.ancestors().take_while(|folder| *folder != own).find(|folder| holds_run(folder))
}

/// Returns true for the folder of a run. A settings file by itself may be a user's, to start runs with.
fn holds_run(folder: &Path) -> bool {
    let has = |name: &str| folder.join(name).exists();
    let has_trained = || [METRICS, SUMMARY, LOCK].into_iter().any(has);
    is_at_work(folder) || is_run(folder) && (has_trained() || Store::of(folder).has_whole())
}

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
        let kept = with_ending(path, &format!(".{number}"));
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

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};

    use super::*;

    #[test]
    fn settings_of_a_user_make_no_run() {
        let folder = tempfile::tempdir().unwrap();
        let project = folder.path().canonicalize().unwrap();
        let out = project.join("runs/0001");
        write(project.join("config.toml"), "seed = 1\nsteps = 2\n").unwrap();
        create_dir_all(out.join("model")).unwrap();
        check_nested(&out).unwrap();
        check_foreign("trace", &project.join("t.json"), &out).unwrap();
        write(project.join(METRICS), "").unwrap();
        let refusal = check_nested(&out).unwrap_err().to_string();
        assert!(refusal.contains("is in the folder of the run in"), "{refusal}");
        check_foreign("trace", &project.join("t.json"), &out).unwrap_err();
        check_foreign("trace", &out.join("t.json"), &out).unwrap();
    }

    #[test]
    fn a_file_has_one_lock_by_all_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.jsonl");
        write(&file, "").unwrap();
        let other = folder.path().join("../").join(folder.path().file_name().unwrap());
        let lock = Lock::of_output("metrics", &file, lock_of(&file)).unwrap();
        let again = Lock::of_output("metrics", &file, lock_of(&other.join("m.jsonl")));
        let refusal = again.err().unwrap().to_string();
        assert!(refusal.contains("writes there, and it is at work"), "{refusal}");
        drop(lock);
        assert!(!lock_of(&file).exists());
        assert!(!is_lockable(Path::new("/dev/null")) || cfg!(not(unix)));
    }
}
