//! Randomly changed files, some of them with a hash that matches the change.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::files::TINY;
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

/// Damages one file that is independent of others.
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
    match random.below(4) {
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
        "generate --model model --tokens 3 --prompt pipeline",
        "generate --model run --tokens 3 --prompt ab",
    ];
    for _ in 0..2 {
        let command = words(attempt.random.of(&commands));
        attempt.run(&command)?;
    }
    Ok(())
}

/// Changes a file in several places.
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

/// Replaces the first number from `at` on by another number or a word.
fn another_number(random: &mut Random, bytes: &mut Vec<u8>, at: usize) {
    let is_digit = |byte: &u8| byte.is_ascii_digit();
    let Some(start) = bytes[at..].iter().position(is_digit).map(|n| at + n) else { return };
    let length = bytes[start..].iter().take_while(|byte| is_digit(byte)).count();
    let other = if random.once_in(4) { random.value() } else { random.number() };
    bytes.splice(start..start + length, other.into_bytes());
}

/// Damages the content of a manifest, and updates its hash.
fn reseal(random: &mut Random, checkpoint: &Path) -> Result<()> {
    let path = checkpoint.join("manifest.json");
    let text = fs::read_to_string(&path)?;
    let mut rest = sealed(&text)?.as_bytes().to_vec();
    for _ in 0..1 + random.below(2) {
        let at = random.below(rest.len());
        match random.below(4) {
            0 => change(random, &mut rest),
            1 => another_number(random, &mut rest, at),
            _ => rest = restructured(random, &[b"{\n", &rest[..]].concat(), true)[2..].to_vec(),
        }
    }
    seal(&path, &rest)
}

/// Damages the header or the values of a shard, and updates its size and hash in the manifest.
fn resealed_shard(random: &mut Random, checkpoint: &Path) -> Result<()> {
    let manifest = checkpoint.join("manifest.json");
    let path = checkpoint.join(random.of(&["shard-0000.safetensors", "shard-0001.safetensors"]));
    let before = fs::read(&path)?;
    let size = u64::from_le_bytes(before.first_chunk().copied().context("a shard has a header")?);
    let (header, values) = before[8..].split_at((size as usize).min(before.len() - 8));
    let (mut header, mut values) = (header.to_vec(), values.to_vec());
    match random.below(4) {
        0 => change(random, &mut header),
        1 => {
            let at = random.below(values.len()) / 4 * 4;
            let odd = random.of(&[f32::NAN, f32::INFINITY, -0.0, 1e38, f32::MIN_POSITIVE / 2.0]);
            values[at..at + 4].copy_from_slice(&odd.to_le_bytes());
        }
        _ => header = restructured(random, &header, false),
    }
    let size = if random.once_in(4) { size } else { header.len() as u64 };
    let after = [&size.to_le_bytes()[..], &header, &values].concat();
    fs::write(&path, &after)?;
    let hash = |bytes: &[u8]| blake3::hash(bytes).to_string();
    let text = fs::read_to_string(&manifest)?.replace(&hash(&before), &hash(&after));
    let size = |bytes: &[u8]| format!("\"bytes\": {}", bytes.len());
    let text = text.replacen(&size(&before), &size(&after), 1);
    seal(&manifest, sealed(&text)?.as_bytes())
}

/// JSON with one value changed, removed or moved. Text that is not JSON stays as it is.
fn restructured(random: &mut Random, text: &[u8], is_pretty: bool) -> Vec<u8> {
    let Ok(mut whole) = serde_json::from_slice::<Value>(text) else { return text.to_vec() };
    let spare = match random.below(8) {
        0 => Value::Null,
        1 => Value::from(random.value()),
        2 => Value::from(vec![Value::from(0); random.below(3)]),
        3 => Value::from("\u{1b}]0;x\u{7}"),
        _ => serde_json::from_str(&random.number()).unwrap_or(Value::from(u64::MAX)),
    };
    let mut at = &mut whole;
    loop {
        let n = match at {
            Value::Array(items) => items.len(),
            Value::Object(fields) => fields.len(),
            _ => 0,
        };
        if n == 0 || random.once_in(8) {
            *at = spare;
            break;
        }
        let number = random.below(n);
        let is_removed = random.once_in(12);
        match at {
            Value::Object(fields) => {
                let key = fields.keys().nth(number).cloned().unwrap_or_default();
                if is_removed {
                    let value = fields.remove(&key).unwrap_or_default();
                    if random.once_in(2) {
                        fields.insert(random.value(), value);
                    }
                    break;
                }
                at = &mut fields[&key];
            }
            Value::Array(items) if is_removed => {
                let item = items.remove(number);
                if random.once_in(2) {
                    items.extend([item.clone(), item]);
                }
                break;
            }
            other => at = &mut other[number],
        }
    }
    let written =
        if is_pretty { serde_json::to_vec_pretty(&whole) } else { serde_json::to_vec(&whole) };
    written.ok().filter(|written| written.len() > 2).unwrap_or_else(|| text.to_vec())
}

/// The part of a manifest that the hash in its first lines covers.
fn sealed(text: &str) -> Result<&str> {
    text.splitn(3, '\n').nth(2).context("a manifest has lines")
}

fn seal(path: &PathBuf, rest: &[u8]) -> Result<()> {
    let head = format!("{{\n  \"blake3\": \"{}\",\n", blake3::hash(rest));
    Ok(fs::write(path, [head.as_bytes(), rest].concat())?)
}
