//! Output of commands: reports, messages, files and numbers.

use std::fmt::Display;
use std::fs::{OpenOptions, remove_file};
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use chimera_core::notation::significant;
pub(crate) use chimera_core::render::report::counted;

use crate::cli::parts::terminal::message::shown;
use crate::formats::files;

/// Writes a file that a user named, either whole or not at all.
pub(crate) fn write_whole(path: &Path, content: &str) -> Result<()> {
    let written = files::write_named(path, content.as_bytes());
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Refuses a file that cannot be written. Does not try a pipe: its reader would take that for the
/// end.
pub(crate) fn check_writable(path: &Path) -> Result<()> {
    let found = path.metadata();
    let is_there = found.is_ok();
    if found.is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return Ok(());
    }
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.with_context(|| format!("cannot write {}", path.display()))?;
    if !is_there {
        remove_file(path)?;
    }
    Ok(())
}

/// Refuses a path that is not a folder.
pub(crate) fn require_folder(path: &Path) -> Result<()> {
    let found = match path.metadata() {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            bail!("{}: there is no such folder", path.display())
        }
        found => found.with_context(|| format!("cannot read {}", path.display()))?,
    };
    ensure!(found.is_dir(), "{} is a file: name a folder", path.display());
    Ok(())
}

/// Formats a time or another number in a report.
pub(crate) fn figure(x: f64) -> String {
    significant(x, 6)
}

/// Formats a number with `decimals` decimals, or in powers of ten if it is too large or too small
/// for that.
pub(crate) fn fixed(x: f64, decimals: usize) -> String {
    let is_small = x != 0.0 && x.abs() < 0.1f64.powi(decimals as i32);
    if is_small || x.abs() >= 1e5 { format!("{x:.2e}") } else { format!("{x:.decimals$}") }
}

/// Formats a large number with a unit letter: `152k`, `1.23M`.
pub(crate) fn count(n: u64) -> String {
    let units = [("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)];
    match units.into_iter().find(|(_, unit)| n >= 10_000 && n as f64 >= *unit) {
        Some((letter, unit)) => significant(n as f64 / unit, 3) + letter,
        None => n.to_string(),
    }
}

/// Formats a waiting time in a suitable unit: `11 s`, `3 min`, `2.5 h`, `3.1 days`.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.0} s"),
        s if s < 100.0 * 60.0 => format!("{:.0} min", s / 60.0),
        s if s < 48.0 * 3600.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{} days", fixed(s / 86400.0, 1)),
    }
}

/// Writes a message to standard error; `eprintln!` would panic if that is closed or full. All
/// errors and warnings are printed here, in the form that a terminal may [show](shown).
///
/// A message is a single write, so that messages of several ranks do not mix.
pub(crate) fn tell(message: impl Display) {
    let line = format!("{}\n", shown(&message.to_string()));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Writes a warning.
pub(crate) fn warn(problem: &str) {
    tell(format_args!("warning: {problem}"));
}

/// Writes a report to standard output; `println!` would panic if the reader is gone.
pub(crate) fn print(report: impl AsRef<str>) -> Result<()> {
    write(&[report.as_ref().trim_end(), "\n"])
}

/// Writes texts to standard output unchanged, and flushes.
pub(crate) fn write(texts: &[&str]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = texts.iter().try_for_each(|text| out.write_all(text.as_bytes()));
    written.and_then(|()| out.flush()).context("cannot write to standard output")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_whatever_their_size() {
        assert_eq!(
            [0.0, 0.25, 99_999.0, 1e5, 2.5e-5, -3e7].map(|x| fixed(x, 3)),
            ["0.000", "0.250", "99999.000", "1.00e5", "2.50e-5", "-3.00e7"]
        );
        assert_eq!(
            [0, 9999, 10_000, 151_552, 1_234_567, 5_000_000_000].map(count),
            ["0", "9999", "10k", "152k", "1.23M", "5B"]
        );
        assert_eq!(
            [0.4, 99.0, 150.0, 9000.0, 400_000.0].map(duration),
            ["0 s", "99 s", "2 min", "2.5 h", "4.6 days"]
        );
    }
}
