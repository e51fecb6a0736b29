//! `chimera report`: writes a page of HTML about a run.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::{Args, ValueHint};

use crate::cli::parts::terminal::browser::open;
use crate::cli::parts::terminal::console::print;
use crate::cli::parts::terminal::output::written_path;
use crate::cli::parts::training::followed::named_or_newest;
use crate::cli::parts::training::report;
use crate::formats::files::open_regular;

/// Text near the beginning of every report.
const TITLE: &str = "<title>Chimera: ";
/// Number of bytes that are sure to contain the title.
const HEAD_BYTES: u64 = 4096;

/// Name of the page that compares runs.
const COMPARISON: &str = "comparison.html";

/// Writes a page about a run, or compares runs
///
/// The page opens in any browser, without a network: loss, sample, planned and measured timeline, memory, errors of the
/// prediction, advice, settings.
#[derive(Args)]
pub(crate) struct Report {
    /// Directories of runs, active or finished: one to describe, or several to compare [default: the newest in `runs`]
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    runs: Vec<PathBuf>,
    /// File for the page; replaces an earlier report [default: report.html in the directory of the run, or comparison.html
    /// here]
    #[arg(long, value_name = "FILE", value_parser = written_path(), value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,
    /// Open the page in a browser
    #[arg(long)]
    open: bool,
}

impl Report {
    pub(crate) fn run(self) -> Result<()> {
        let Report { mut runs, out, open: opens } = self;
        let is_comparison = runs.len() > 1;
        let out = out.or_else(|| is_comparison.then(|| COMPARISON.into()));
        if let Some(out) = &out {
            ensure!(
                out.symlink_metadata().is_err() || out.is_dir() || is_report(out),
                "{} exists already and is not the report of a run: choose another --out, or remove it",
                out.display()
            );
        }
        let page = match out {
            Some(out) if is_comparison => report::compare(&runs, out)?,
            out => report::write(&named_or_newest(runs.pop())?, out)?,
        };
        if opens {
            open(&page);
        }
        print(format!("report: {}", page.display()))
    }
}

/// Returns true if this command wrote the file.
fn is_report(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    read.is_ok() && String::from_utf8_lossy(&head).contains(TITLE)
}

#[cfg(test)]
mod tests {
    use std::fs::write;

    use super::*;

    #[test]
    fn other_files_are_no_reports() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let page =
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<title>Chimera: runs/0001</title>\n";
        for (name, content, expected) in
            [("page.html", page, true), ("notes.html", "<title>Mine</title>", false)]
        {
            write(at(name), content).unwrap();
            assert_eq!(is_report(&at(name)), expected, "{name}");
        }
        let out = Some(at("notes.html"));
        let report = Report { runs: vec![folder.path().to_path_buf()], out, open: false };
        let refusal = report.run().unwrap_err().to_string();
        assert!(refusal.ends_with("choose another --out, or remove it"), "{refusal}");
    }
}
