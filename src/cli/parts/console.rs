//! What commands print, and where they say what they do.

use std::fmt::Display;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use chimera_core::notation::significant;

use crate::formats::files;

/// Writes a file that is there whole or not at all.
pub(crate) fn write_whole(path: &Path, content: &str) -> Result<()> {
    let written = files::write(path, content.as_bytes());
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Refuses a path that is no folder.
pub(crate) fn require_folder(path: &Path) -> Result<()> {
    ensure!(path.exists(), "{}: there is no such folder", path.display());
    ensure!(path.is_dir(), "{} is a file: name a folder", path.display());
    Ok(())
}

/// A time or another number of a report, in whatever unit.
pub(crate) fn figure(x: f64) -> String {
    significant(x, 6)
}

/// Writes a line to standard error, where `eprintln!` would panic when that is closed or full.
pub(crate) fn tell(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Writes a line about something that ends nothing.
pub(crate) fn warn(problem: &str) {
    tell(format_args!("warning: {problem}"));
}

/// Writes a report to standard output, where `println!` would panic when the reader is gone.
pub(crate) fn print(report: impl AsRef<str>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(report.as_ref().trim_end().as_bytes())?;
    Ok(out.write_all(b"\n").and_then(|()| out.flush())?)
}

/// A word as a POSIX shell reads it back.
pub(crate) fn quoted(word: impl Display) -> String {
    let word = word.to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
