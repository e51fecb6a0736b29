//! Outputs of a run outside of its own folder: never in the folder of another run, and never where another run writes.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use chimera_formats::checkpoint::Store;
use chimera_formats::files::prepare_dir;
use chimera_settings::Config;

use super::lock::{LOCK, Lock, is_at_work};
use super::own_files::{METRICS, SUMMARY, check_outputs, outputs, resolved};
use super::settings_file::is_run;

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
    let mut name = resolved(path).into_os_string();
    name.push(".lock");
    name.into()
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
