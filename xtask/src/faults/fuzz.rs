//! Fuzzing of what reads files from anyone: libFuzzer on the targets of tests/fuzz.
//!
//! Coverage comes from compiler flags of the stable toolchain, so neither a nightly one nor cargo-fuzz is
//! needed; libFuzzer itself needs a C++ compiler.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use chimera_core::ids::PipeId;
use chimera_core::interchange::{to_csv, to_json};
use chimera_core::schedule::{SCHEDULES, Shape};
use chimera_core::timetable::Timetable;

use clap::ValueEnum;

use xtask::command::{cargo, read, root, run as run_command, target};

/// What the compiler adds for libFuzzer to see where an input leads.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// What to fuzz, for how long.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The target [default: each in turn]
    target: Option<Target>,
    /// Seconds per target
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Target {
    Json,
    Csv,
    Manifest,
    Weights,
    Config,
    Tokenizer,
    Settings,
    Prepared,
    Index,
    Shard,
}

impl Target {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
    }
}

/// Builds the targets and runs each until its time is over or an input fails.
pub(crate) fn run(args: &Args) -> Result<()> {
    let folder = target()?.join("fuzz");
    let built = build(&folder)?;
    let targets = args.target.map_or(Target::value_variants().to_vec(), |target| vec![target]);
    for target in targets {
        let name = target.name();
        let corpus = folder.join("corpus").join(&name);
        fs::create_dir_all(&corpus)?;
        seed(target, &corpus)?;
        let failed = folder.join(format!("{name}-"));
        let mut fuzzer = Command::new(built.join(&name));
        fuzzer.arg(&corpus).arg(format!("-max_total_time={}", args.seconds));
        fuzzer
            .args(["-max_len=16384", "-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"]);
        fuzzer.arg(format!("-artifact_prefix={}", failed.display()));
        run_command(&mut fuzzer).with_context(|| {
            format!("target {name} failed; the input is in {}*", failed.display())
        })?;
    }
    Ok(())
}

/// Builds all targets; returns the folder in which they are.
fn build(folder: &Path) -> Result<PathBuf> {
    let about = read(Command::new("rustc").arg("-vV"))?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc names no host")?;
    // With a target named, the flags reach neither build scripts nor macros.
    let mut build = cargo(["build", "--release", "--target", host]);
    build.args(["--manifest-path", "tests/fuzz/Cargo.toml", "--target-dir"]).arg(folder);
    run_command(build.env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", COVERAGE))
        .context("libFuzzer needs a C++ compiler")?;
    Ok(folder.join(host).join("release"))
}

/// What is sound, to begin with.
fn seed(target: Target, corpus: &Path) -> Result<()> {
    let fixtures = root().join("tests/fixtures/gpt2/tied");
    let sound = match target {
        Target::Json => timetables(|timetable| Some(to_json(timetable))),
        Target::Csv => timetables(|timetable| to_csv(timetable, PipeId(0)).ok()),
        Target::Manifest => vec![("small".to_string(), MANIFEST.as_bytes().to_vec())],
        Target::Weights => {
            vec![("tied".to_string(), fs::read(fixtures.join("model.safetensors"))?)]
        }
        Target::Config => vec![("tied".to_string(), fs::read(fixtures.join("config.json"))?)],
        Target::Tokenizer => vec![("words".to_string(), TOKENIZER.as_bytes().to_vec())],
        Target::Settings => vec![("small".to_string(), SETTINGS.as_bytes().to_vec())],
        Target::Prepared => vec![("bytes".to_string(), PREPARED.as_bytes().to_vec())],
        Target::Index => {
            let index = "tests/fixtures/gpt2/bf16-sharded/model.safetensors.index.json";
            vec![("sharded".to_string(), fs::read(root().join(index))?)]
        }
        Target::Shard => {
            let shard = "tests/fixtures/checkpoint/format-1/shard-0000.safetensors";
            vec![("format-1".to_string(), fs::read(root().join(shard))?)]
        }
    };
    for (name, content) in sound {
        fs::write(corpus.join(name), content)?;
    }
    Ok(())
}

fn timetables(text: impl Fn(&Timetable) -> Option<String>) -> Vec<(String, Vec<u8>)> {
    let mut small = Vec::new();
    for schedule in SCHEDULES {
        for (depth, n) in [(1, 1), (2, 2), (4, 4)] {
            let Ok(timetable) = schedule.timetable(&Shape::new(depth, n)) else { continue };
            let name = format!("{}-{depth}-{n}", schedule.name());
            small.extend(text(&timetable).map(|text| (name, text.into_bytes())));
        }
    }
    small
}

/// What follows the hash of a manifest.
const MANIFEST: &str = r#"  "format": 1,
  "written_by": "chimera",
  "step": 2,
  "updates": 2,
  "samples_per_step": 8,
  "next_samples": "",
  "settings": {"seed": "1"},
  "shards": [{"file": "shard-0000.safetensors", "bytes": 8, "blake3": ""}]
}
"#;

/// Settings of every type.
const SETTINGS: &str =
    "depth = 2\nlr = 1e-3\nhoist = 1\ntied = true\nschedule = 'dapple'\ndata = ['a.txt', \"b\"]\n";

/// What stands beside four tokens of two bytes.
const PREPARED: &str = r#"{"format": 1, "tokenizer": "bytes", "vocab": 256, "tokens": 4,
    "sources": [{"path": "a.txt", "bytes": 4}]}"#;

/// A tokenizer of words.
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "pipe": 1, "stage": 2}}}"#;
