//! Files that were changed at random, also such that their hash is right.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::fixtures::TINY;
use super::process::words;
use super::random::Random;
use super::{Attempt, places};

/// A file with the commands that read it.
const FILES: [(&str, &[&str]); 5] = [
    (
        "schedule.json",
        &[
            "schedule check schedule.json",
            "simulate schedule.json",
            "train {tiny} --schedule schedule.json --data text --steps 1 --out r",
        ],
    ),
    (
        "schedule.csv",
        &["schedule check schedule.csv", "schedule export schedule.csv --format svg --out x.svg"],
    ),
    (
        "run.toml",
        &[
            "config check run.toml",
            "train --config run.toml {tiny} --data text --steps 1 --transport threads --out r",
        ],
    ),
    (
        "tokenizer.json",
        &[
            "prepare text --tokenizer tokenizer.json --out x.bin",
            "prepare text --tokenizer tokenizer.json --out x.u32.bin",
        ],
    ),
    ("data.bin.json", &["train {tiny} --data data.bin --steps 1 --out r"]),
];

/// Damages one file that stands for itself.
pub(super) fn files(attempt: &mut Attempt<'_>) -> Result<()> {
    let all = ["schedule.json", "schedule.csv", "run.toml", "tokenizer.json", "text"];
    attempt.fixtures.copy(&all, &attempt.folder)?;
    attempt
        .fixtures
        .copy(&["data.bin", "data.bin.json", "data.bin.tokenizer.json"], &attempt.folder)?;
    let (file, commands) = attempt.random.of(&FILES);
    damage(&mut attempt.random, &attempt.folder.join(file))?;
    let command = attempt.random.of(commands).replace("{tiny}", TINY);
    attempt.run(&words(&command)).map(drop)
}

/// Damages a file of a run, a checkpoint or a model.
pub(super) fn runs(attempt: &mut Attempt<'_>) -> Result<()> {
    attempt.fixtures.copy(&["text", "run", "model"], &attempt.folder)?;
    let checkpoint = attempt.folder.join("run/checkpoints/step-00000004");
    let random = &mut attempt.random;
    match random.below(6) {
        0 => reseal(random, &checkpoint)?,
        1 => resealed_shard(random, &checkpoint)?,
        _ => {
            for _ in 0..1 + random.below(2) {
                let folder = random.of(&["run", "model", "run/checkpoints/step-00000004"]);
                let files = places::files(&attempt.folder.join(folder))?;
                let file = random.of(&files);
                damage(random, &file)?;
            }
        }
    }
    let resume =
        format!("train {TINY} --data text --out run --save-every 2 --steps 6 --resume auto");
    let commands = [
        resume.as_str(),
        "top --once run",
        "checkpoint ls run",
        "checkpoint verify run/checkpoints/step-00000004",
        "checkpoint export run/checkpoints/step-00000004 --out x.safetensors",
        "export run --out exported",
        "export model --out exported",
        "eval --model model --data text",
        "generate --model model --max-tokens 3 --prompt pipeline",
        "generate --model run --max-tokens 3 --prompt ab",
    ];
    for _ in 0..2 {
        let command = words(attempt.random.of(&commands));
        attempt.run(&command)?;
    }
    Ok(())
}

/// Changes a file in some places.
pub(super) fn damage(random: &mut Random, path: &Path) -> Result<()> {
    let mut bytes = fs::read(path).with_context(|| path.display().to_string())?;
    for _ in 0..1 + random.below(3) {
        change(random, &mut bytes);
    }
    fs::write(path, bytes).with_context(|| path.display().to_string())
}

fn change(random: &mut Random, bytes: &mut Vec<u8>) {
    let at = random.below(bytes.len());
    match random.below(8) {
        0 => bytes.truncate(at),
        1 if !bytes.is_empty() => bytes[at] = random.byte(),
        2 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
        3 => bytes.insert(at, random.byte()),
        4 => bytes.extend_from_slice(b"\0\xff{\n"),
        5 => {
            let end = (at + random.below(60)).min(bytes.len());
            bytes.drain(at..end);
        }
        6 => {
            let end = (at + random.below(200)).min(bytes.len());
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
        _ => another_number(random, bytes, at),
    }
}

/// Puts another number, or a word, in the place of one behind `at`.
fn another_number(random: &mut Random, bytes: &mut Vec<u8>, at: usize) {
    let is_digit = |byte: &u8| byte.is_ascii_digit();
    let Some(start) = bytes[at..].iter().position(is_digit).map(|n| at + n) else { return };
    let length = bytes[start..].iter().take_while(|byte| is_digit(byte)).count();
    let other = if random.once_in(4) { random.value() } else { random.number() };
    bytes.splice(start..start + length, other.into_bytes());
}

/// Damages what a manifest says, and gives it the hash of that.
fn reseal(random: &mut Random, checkpoint: &Path) -> Result<()> {
    let path = checkpoint.join("manifest.json");
    let text = fs::read_to_string(&path)?;
    let mut rest = text.splitn(3, '\n').nth(2).context("a manifest has lines")?.as_bytes().to_vec();
    for _ in 0..1 + random.below(2) {
        let at = random.below(rest.len());
        if random.once_in(3) {
            change(random, &mut rest)
        } else {
            another_number(random, &mut rest, at)
        }
    }
    seal(&path, &rest)
}

/// Damages a shard, and gives the manifest its size and hash.
fn resealed_shard(random: &mut Random, checkpoint: &Path) -> Result<()> {
    let (path, manifest) =
        (checkpoint.join("shard-0000.safetensors"), checkpoint.join("manifest.json"));
    let text = fs::read_to_string(&manifest)?;
    let before = fs::read(&path)?;
    // Most of it is values, in which nothing can be told from what was meant.
    let header = 8 + before.len().min(400);
    let mut head = before[..header.min(before.len())].to_vec();
    change(random, &mut head);
    let after = [&head, &before[header.min(before.len())..]].concat();
    fs::write(&path, &after)?;
    let hash = |bytes: &[u8]| blake3::hash(bytes).to_string();
    let text = text.replace(&hash(&before), &hash(&after));
    let size = |bytes: &[u8]| format!("\"bytes\": {}", bytes.len());
    let text = text.replacen(&size(&before), &size(&after), 1);
    let rest = text.splitn(3, '\n').nth(2).context("a manifest has lines")?;
    seal(&manifest, rest.as_bytes())
}

fn seal(path: &PathBuf, rest: &[u8]) -> Result<()> {
    let head = format!("{{\n  \"blake3\": \"{}\",\n", blake3::hash(rest));
    Ok(fs::write(path, [head.as_bytes(), rest].concat())?)
}
