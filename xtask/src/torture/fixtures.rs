//! Sound files that cases damage: made once, by the command itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::process::{Limits, words};

/// A training of a moment.
pub(super) const TINY: &str = "--layers 4 --hidden 16 --heads 2 --context 16 --depth 2 --micro-batches 4 \
                               --micro-batch-size 1 --threads 1";

/// Commands whose options are tortured, with what ends a line of theirs: what would otherwise take long.
const COMMANDS: [(&str, &str); 9] = [
    ("train", "--data text --steps 2 --search-time 0.2 --transport threads"),
    ("config show", "--data text"),
    ("simulate", "--search-time 0.2"),
    ("schedule show", "--search-time 0.2"),
    ("schedule check", ""),
    ("schedule export", "--search-time 0.2"),
    ("schedule compare", "--search-time 0.2"),
    ("plan", "--data text --search-time 1"),
    ("generate", "--max-tokens 3"),
];

/// What cases begin with.
pub(super) struct Fixtures {
    folder: TempDir,
    /// By command: its options, and what ends a line.
    pub(super) options: BTreeMap<&'static str, (Vec<String>, &'static str)>,
}

impl Fixtures {
    pub(super) fn make(limits: &Limits) -> Result<Fixtures> {
        let folder = TempDir::new()?;
        let at = folder.path();
        fs::write(at.join("text"), "The pipeline flushes, and both directions meet. ".repeat(60))?;
        fs::write(
            at.join("run.toml"),
            "preset = \"tiny\"\nschedule = \"gpipe\"\ndepth = 2\nlr = 1e-3\nsteps = 2\n",
        )?;
        fs::write(at.join("tokenizer.json"), TOKENIZER)?;
        let run = |line: &str| -> Result<String> {
            let outcome = limits.run(&words(line), at)?;
            outcome.check()?;
            ensure!(outcome.is_success(), "`chimera {line}` fails on sound files");
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
        let mut options = BTreeMap::new();
        for (command, end) in COMMANDS {
            let help = run(&format!("{command} --help"))?;
            options.insert(command, (options_in(&help), end));
        }
        Ok(Fixtures { folder, options })
    }

    /// Where a fixture is.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Copies fixtures into the folder of a case.
    pub(super) fn copy(&self, names: &[&str], to: &Path) -> Result<()> {
        names.iter().try_for_each(|name| copy(&self.path(name), &to.join(name)))
    }
}

/// The options that a help text tells of.
fn options_in(help: &str) -> Vec<String> {
    let option = |line: &str| {
        let line = line.trim_start();
        let line = line
            .split_once(", ")
            .filter(|(short, _)| short.len() == 2)
            .map_or(line, |(_, long)| long);
        let name = line.strip_prefix("--")?.split([' ', '=', '[']).next()?;
        Some(format!("--{name}"))
    };
    help.lines().filter_map(option).filter(|name| name != "--help").collect()
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let place = || format!("cannot copy {}", from.display());
    if !from.is_dir() {
        return fs::copy(from, to).map(drop).with_context(place);
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(place)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

/// A tokenizer of a few words.
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
 "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
 "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "pipeline": 1, "and": 2, "meet": 7}}}
"#;
