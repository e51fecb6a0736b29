//! The checkpoint that a run will go on from, found in its folder before the run is prepared.

use std::path::{Path, PathBuf};

use chimera_formats::checkpoint::{AUTO, Manifest, Store, Unusable};

use super::own_files::SETTINGS;
use super::settings_file::{path_in, settings_in};

/// Returns the checkpoint that `resume` names; with `auto`, the newest of the run in `out`, or else
/// the one that this run began with. It may turn out to be unusable; then an older one is taken.
pub(crate) fn planned_checkpoint(
    resume: &str,
    out: Option<&Path>,
) -> Result<Option<(PathBuf, Manifest)>, Unusable> {
    let read = |path: PathBuf| Manifest::read(&path).map(|manifest| (path, manifest));
    if resume != AUTO {
        return read(resume.into()).map(Some);
    }
    let Some(out) = out else { return Ok(None) };
    let entries = Store::of(out).entries().unwrap_or_default();
    for entry in entries.iter().rev().filter(|entry| entry.is_whole) {
        match read(entry.path()) {
            Err(unusable) if unusable.is_damage() => {}
            found => return found.map(Some),
        }
    }
    let forked = forked_from(out).map(|from| read(from).map_err(|e| unusable_fork(out, e)));
    forked.transpose()
}

/// Returns the checkpoint of another run that the run in `folder` began with, according to its settings.
pub(crate) fn forked_from(folder: &Path) -> Option<PathBuf> {
    let settings = settings_in(folder).ok()?;
    let from = path_in(&settings, "resume")?;
    let is_other = from != Path::new(AUTO) && !Store::of(folder).holds(from);
    is_other.then(|| from.to_path_buf())
}

/// Adds to an error why the checkpoint is needed that the run in `folder` began with.
pub(crate) fn unusable_fork(folder: &Path, unusable: Unusable) -> Unusable {
    let settings = folder.join(SETTINGS);
    let reason = format!(
        "{}; {} says that the run began with this checkpoint, and it has none of its own yet: put it back, or choose another \
         --out",
        unusable.reason,
        settings.display()
    );
    Unusable { reason, ..unusable }
}
