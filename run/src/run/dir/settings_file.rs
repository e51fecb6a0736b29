//! The settings in the folder of a run, read again.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use chimera_formats::files::text_regular;

use super::own_files::{METRICS, SETTINGS};

/// Longer files are not settings.
pub(crate) const MAX_SETTINGS: u64 = 16 << 20;
/// Keys in the settings of every run.
const OF_ALL: [&str; 2] = ["seed", "steps"];

/// Returns true if a folder holds the settings of a run, even torn ones, and not a user's own settings.
pub fn is_run(folder: &Path) -> bool {
    let is_whole = |settings: toml::Table| OF_ALL.iter().all(|key| settings.contains_key(*key));
    folder.join(SETTINGS).exists() && settings_in(folder).map_or(true, is_whole)
}

/// Returns the settings of the run in a folder.
pub fn settings_in(folder: &Path) -> Result<toml::Table> {
    let path = folder.join(SETTINGS);
    let read = || -> Result<_> {
        let text = text_regular(&path, MAX_SETTINGS)?;
        Ok(text.with_context(|| format!("it is longer than {MAX_SETTINGS} bytes"))?.parse()?)
    };
    read().with_context(|| path.display().to_string())
}

/// Refuses settings that exist but are not whole.
pub(crate) fn check_whole(folder: &Path) -> Result<()> {
    let lacking = |settings: toml::Table| {
        let key = OF_ALL.iter().find(|key| !settings.contains_key(**key))?;
        Some(format!("{}: it lacks `{key}`", folder.join(SETTINGS).display()))
    };
    let torn = settings_in(folder).map_or_else(|e| Some(format!("{e:#}")), lacking);
    ensure!(
        torn.is_none(),
        "{}: the settings of the run are incomplete. If a power failure damaged them, remove the \
         file, move {METRICS} away and start again; or choose another --out",
        torn.unwrap_or_default()
    );
    Ok(())
}

/// Returns a path from settings.
pub(crate) fn path_in<'s>(settings: &'s toml::Table, key: &str) -> Option<&'s Path> {
    settings.get(key)?.as_str().map(Path::new)
}

/// Returns true if two paths lead to the same place.
pub(crate) fn is_same(a: &Path, b: &Path) -> bool {
    let whole = |path: &Path| path.canonicalize().ok();
    a == b || whole(a).is_some_and(|a| whole(b) == Some(a))
}
