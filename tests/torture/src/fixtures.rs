//! Sound files that cases start from, made once by the command itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use tempfile::TempDir;

use super::files::{TINY, copy, open_to_all};
use super::process::{Limits, Under, words};
use super::table::{self, CommandRow};
use super::{failing, options};
use xtask::command::{root, run as run_command};

/// Files and programs that cases start from.
pub(super) struct Fixtures {
    folder: TempDir,
    pub(super) commands: Vec<CommandRow>,
    /// A library to preload that makes calls fail.
    pub(super) library: PathBuf,
    /// A copy of the command that every user can start.
    pub(super) program: PathBuf,
    pub(super) trainings: Vec<failing::Training>,
}

impl Fixtures {
    pub(super) fn make(limits: &Limits) -> Result<Fixtures> {
        let folder = TempDir::new()?;
        let at = folder.path();
        open_to_all(at)?;
        fs::write(at.join("text"), "The pipeline flushes, and both directions meet. ".repeat(60))?;
        let toml = "preset = \"tiny\"\nschedule = \"gpipe\"\ndepth = 2\nlr = 1e-3\nsteps = 2\n";
        fs::write(at.join("run.toml"), toml)?;
        fs::write(at.join("slurm.toml"), format!("{toml}out = \"r\"\nsave-every = 1\n"))?;
        fs::write(at.join("tokenizer.json"), TOKENIZER)?;
        let run = |line: &str| -> Result<String> {
            let outcome = limits.run(&words(line), &Under::default(), at)?;
            outcome.check(&Under::default())?;
            ensure!(
                outcome.is_success(),
                "`chimera {line}` fails on sound files: {}",
                outcome.stderr
            );
            Ok(outcome.stdout)
        };
        run(&format!("train {TINY} --data text --steps 4 --save-every 2 --out run --save model"))?;
        run("prepare text --tokenizer tokenizer.json --out data.bin")?;
        fs::copy(at.join("tokenizer.json"), at.join("model/tokenizer.json"))?;
        for (format, file) in [("json", "schedule.json"), ("pytorch-csv", "schedule.csv")] {
            run(&format!(
                "schedule export 1f1b --depth 2 --micro-batches 4 --format {format} --out {file}"
            ))?;
        }
        let commands = table::read(&run("completions zsh")?)?;
        options::check(&commands)?;
        let (library, program) = (at.join("failing_calls.so"), at.join("chimera"));
        let source = root().join("tests/torture/src/failing_calls.c");
        let compile = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"];
        run_command(Command::new("cc").args(compile).arg(&library).arg(source).arg("-ldl"))?;
        fs::copy(&limits.program, &program)?;
        let trainings = failing::Training::all(limits, &library, at)?;
        Ok(Fixtures { folder, commands, library, program, trainings })
    }

    /// The path of a fixture.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Copies fixtures into the folder of a case.
    pub(super) fn copy(&self, names: &[&str], to: &Path) -> Result<()> {
        names.iter().try_for_each(|name| copy(&self.path(name), &to.join(name)))
    }
}

/// A tokenizer of a few words.
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
 "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
 "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "pipeline": 1, "and": 2, "meet": 7}}}
"#;
