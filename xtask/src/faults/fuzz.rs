//! Fuzzing of the readers of untrusted files: libFuzzer on the targets of tests/fuzz.
//!
//! Coverage comes from compiler flags of the stable toolchain, so neither a nightly one nor
//! cargo-fuzz is needed; libFuzzer itself needs a C++ compiler.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use chimera_core::ids::PipeId;
use chimera_core::interchange::{to_csv, to_json};
use chimera_core::schedule::{SCHEDULES, Shape};
use clap::builder::PossibleValuesParser;
use xtask::command::{cargo, read, root, run as run_command, target};

/// Compiler flags that record coverage for libFuzzer.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// The target and the time.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The target [default: each in turn]
    #[arg(value_parser = PossibleValuesParser::new(TARGETS.map(|(name, _)| name)))]
    target: Option<String>,
    /// Seconds per target
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
}

/// Each target with a sound file of its kind to start from. chimera-core writes the timetables.
const TARGETS: [(&str, Option<&str>); 10] = [
    ("json", None),
    ("csv", None),
    ("manifest", Some("tests/fuzz/seeds/manifest")),
    ("weights", Some("tests/fixtures/gpt2/tied/model.safetensors")),
    ("config", Some("tests/fixtures/gpt2/tied/config.json")),
    ("tokenizer", Some("tests/fuzz/seeds/tokenizer")),
    ("settings", Some("tests/fuzz/seeds/settings")),
    ("prepared", Some("tests/fuzz/seeds/prepared")),
    ("index", Some("tests/fixtures/gpt2/bf16-sharded/model.safetensors.index.json")),
    ("shard", Some("tests/fixtures/checkpoint/format-1/shard-0000.safetensors")),
];

/// Builds the targets and runs each until its time is up or an input fails.
pub(crate) fn run(args: &Args) -> Result<()> {
    let folder = target()?.join("fuzz");
    let built = build(&folder)?;
    let is_asked = |name: &str| args.target.as_deref().is_none_or(|target| target == name);
    for (name, sound) in TARGETS.into_iter().filter(|(name, _)| is_asked(name)) {
        let corpus = folder.join("corpus").join(name);
        fs::create_dir_all(&corpus)?;
        match sound {
            Some(sound) => drop(fs::copy(root().join(sound), corpus.join("sound"))?),
            None => write_timetables(name, &corpus)?,
        }
        let failed = folder.join(format!("{name}-"));
        let mut fuzzer = Command::new(built.join(name));
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

/// Builds all targets. Returns the folder with their programs.
fn build(folder: &Path) -> Result<PathBuf> {
    let about = read(Command::new("rustc").arg("-vV"))?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc names no host")?;
    // If a target is given, the flags do not reach build scripts and macros.
    let mut build = cargo(["build", "--release", "--target", host]);
    build.args(["--manifest-path", "tests/fuzz/Cargo.toml", "--target-dir"]).arg(folder);
    run_command(build.env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", COVERAGE))
        .context("libFuzzer needs a C++ compiler")?;
    Ok(folder.join(host).join("release"))
}

/// Writes small timetables of every schedule, as JSON or CSV.
fn write_timetables(format: &str, corpus: &Path) -> Result<()> {
    for schedule in SCHEDULES {
        for (depth, n) in [(1, 1), (2, 2), (4, 4)] {
            let Ok(timetable) = schedule.timetable(&Shape::new(depth, n)) else { continue };
            let text = match format {
                "json" => to_json(&timetable),
                _ => to_csv(&timetable, PipeId(0)).unwrap_or_default(),
            };
            if !text.is_empty() {
                fs::write(corpus.join(format!("{}-{depth}-{n}", schedule.name())), text)?;
            }
        }
    }
    Ok(())
}
