//! The settings of a plan as a file for `train --config`.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::cli::parts::terminal::console::write_whole;
use crate::settings::Settings;

/// Writes `settings`, on top of those in the file `base`, if there is one.
pub(super) fn write(
    file: &Path,
    command: &str,
    base: Option<&Path>,
    settings: &Settings,
) -> Result<()> {
    let mut text = format!("# Chosen by `chimera plan`. Train with:\n# {command}\n");
    if let Some(base) = base {
        let base =
            std::path::absolute(base).with_context(|| format!("cannot name {}", base.display()))?;
        let base = toml::Value::from(base.display().to_string());
        let _ = writeln!(text, "extends = {base}");
    }
    for (key, value) in settings.iter() {
        let _ = writeln!(text, "{key} = {value}");
    }
    write_whole(file, &text)
}
