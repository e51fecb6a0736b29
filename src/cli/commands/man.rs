//! `chimera man`: writes a manual page for each command, with its help and the usual sections of
//! manuals.

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use chimera_core::fault::Class;
use clap::{Args, Command, CommandFactory};
use clap_mangen::roff::{Roff, bold, italic, roman};

use crate::cli::Cli;
use crate::cli::examples::examples;

/// Writes manual pages for all commands
#[derive(Args)]
pub(crate) struct Man {
    /// Folder, which is created if it does not exist
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Name and version of the program.
const VERSION: &str = concat!("chimera ", env!("CARGO_PKG_VERSION"));

/// Exit codes of a command that a signal ended: the second SIGINT or SIGTERM of a training, the
/// first SIGINT of any other command, and SIGABRT.
const ENDED: [(u8, &str); 2] =
    [(130, "ended by a signal, nothing saved"), (134, "no memory left for the process")];

/// Files that `train` reads and writes in the directory of a run.
const FILES: [(&str, &str); 13] = [
    ("config.toml", "all settings as resolved, each with its origin; --config reads it back"),
    ("metrics.jsonl", "one JSON object per step, unless --metrics names another file"),
    ("pipeline.svg", "the last step as it ran; at the end"),
    ("summary.json", "the results of the run, and its prediction; at the end"),
    ("planned.trace.json", "the last step as it was planned, for ui.perfetto.dev; at the end"),
    ("measured.trace.json", "the last step as it ran, for ui.perfetto.dev; at the end"),
    ("report.html", "the report of the run, with --report or from `chimera report`"),
    ("model", "the trained weights, unless --save names another directory; at the end"),
    ("checkpoints", "what --resume continues from"),
    ("lock", "which process trains here; only while it does"),
    ("error.<rank>.json", "why a rank ended the training"),
    ("ops.<rank>.jsonl", "the last operations of a rank before a fault"),
    ("rejoin", "made by a user to start processes for dead ranks"),
];

impl Man {
    pub(crate) fn run(self) -> Result<()> {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        let write = || {
            std::fs::create_dir_all(&self.folder)?;
            write_pages(&command, "", &[], &self.folder)
        };
        write().with_context(|| format!("cannot write manual pages to {}", self.folder.display()))
    }
}

/// Writes the pages of a command at `path` and of all commands below it; `related` are the pages
/// next to it.
fn write_pages(command: &Command, path: &str, related: &[&str], folder: &Path) -> io::Result<()> {
    let below: Vec<&Command> = command.get_subcommands().filter(|sub| !sub.is_hide_set()).collect();
    let names: Vec<&str> = below.iter().map(|sub| name(sub)).collect();
    for sub in below {
        let beside = names.iter().copied().filter(|other| *other != name(sub));
        let related: Vec<&str> = [name(command)].into_iter().chain(beside).collect();
        write_pages(sub, format!("{path} {}", sub.get_name()).trim(), &related, folder)?;
    }
    let man = clap_mangen::Man::new(command.clone()).source(VERSION).manual("Chimera");
    let mut page = Vec::new();
    man.render(&mut page)?;
    let mut page = String::from_utf8_lossy(&page).into_owned();
    let related: Vec<&str> = related.iter().copied().chain(names).collect();
    page.push_str(&sections(path, &related).to_roff());
    std::fs::write(folder.join(man.get_filename()), ascii(&page))
}

fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// The sections that help does not have.
fn sections(path: &str, related: &[&str]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    let classes = Class::ALL.iter().map(|(_, code, about)| (*code, *about));
    for (code, about) in [(0, "done")].into_iter().chain(classes).chain(ENDED) {
        roff.control("TP", []).text([bold(code.to_string())]).text([roman(about)]);
    }
    if path == "train" {
        roff.control("SH", ["FILES"]);
        roff.text([roman(
            "In the directory of a run, runs/0001, runs/0002, … unless --out names another:",
        )]);
        for (file, about) in FILES {
            roff.control("TP", []).text([italic(file)]).text([roman(about)]);
        }
    }
    let examples = examples(path);
    if !examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
    }
    for example in examples {
        roff.control("TP", []).text([bold(example.head)]).text([roman(example.text)]);
    }
    roff.control("SH", ["SEE ALSO"]);
    let last = related.len().saturating_sub(1);
    for (nth, name) in related.iter().enumerate() {
        roff.control("BR", [*name, if nth < last { "(1)," } else { "(1)" }]);
    }
    roff
}

/// Converts a page to ASCII, which every formatter reads.
fn ascii(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    for letter in page.chars() {
        if letter.is_ascii() {
            text.push(letter)
        } else {
            let _ = write!(text, "\\[u{:04X}]", u32::from(letter));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the section of docs/runs.md about the folder of a run.
    #[test]
    fn files_are_those_that_the_documentation_lists() {
        let page = include_str!("../../../docs/runs.md");
        let section = page.split("## The folder of a run\n").nth(1).expect("a section");
        let rows = section.trim_start().split("\n\n").next().expect("a table").lines().skip(2);
        let listed: Vec<&str> = rows.map(|row| row.split('`').nth(1).expect("a name")).collect();
        assert_eq!(FILES.map(|(file, _)| file).to_vec(), listed);
    }

    /// Compares with the section of docs/runs.md about exit codes.
    #[test]
    fn exit_codes_are_those_that_the_documentation_lists() {
        let page = include_str!("../../../docs/runs.md");
        for (class, code, _) in Class::ALL {
            assert_eq!(class.code(), code);
        }
        let classes = Class::ALL.map(|(_, code, about)| (code, about));
        for (code, about) in classes.into_iter().chain(ENDED) {
            assert!(page.contains(&format!("\n| {code} | {about} |")), "{code}: {about}");
        }
    }
}
