//! FIFOs, devices, links, folders and sparse files instead of regular files.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Attempt;
use super::files::TINY;
use super::process::{Flaw, must, words};
use super::random::Random;

/// A file of somebody else that links of a run and of a model lead to. Nothing may write into it or
/// copy it.
const PRECIOUS: &str = "nothing writes here, and nobody reads it";

pub(super) fn attempt(attempt: &mut Attempt<'_>) -> Result<()> {
    attempt.fixtures.copy(&["text", "run", "model", "tokenizer.json"], &attempt.folder)?;
    attempt
        .fixtures
        .copy(&["data.bin", "data.bin.json", "data.bin.tokenizer.json"], &attempt.folder)?;
    let (random, folder) = (&mut attempt.random, attempt.folder.clone());
    let victim = folder.join("victim");
    fs::write(&victim, PRECIOUS)?;
    let mut candidates = ["run", "model", "data.bin.json", "data.bin.tokenizer.json", "data.bin"]
        .into_iter()
        .map(|name| files(&folder.join(name)))
        .collect::<Result<Vec<_>>>()?
        .concat();
    for name in ["lock", "error.0.json", "pipeline.svg", "config.toml.part", "error.0.json.part"] {
        candidates.push(folder.join("run").join(name));
    }
    for name in ["tokenizer.json", "generation_config.json", "model.safetensors.index.json"] {
        candidates.push(folder.join("model").join(name));
    }
    let path = random.of(&candidates);
    replace(random, &path, &victim)?;
    let commands = [
        format!("train {TINY} --data text --out run --save-every 1 --steps 6 --resume auto"),
        format!("train {TINY} --data data.bin --out other --steps 1"),
        "top --once run".into(),
        "checkpoint ls run".into(),
        "checkpoint verify run/checkpoints/step-00000004".into(),
        "export run --out exported".into(),
        "export model --out exported".into(),
        "eval --model model --data text".into(),
        "eval --model model --data data.bin".into(),
        "generate --model model --tokens 3 --prompt pipeline".into(),
        "prepare data.bin --out again.bin".into(),
    ];
    for _ in 0..2 {
        let command = words(&attempt.random.of(&commands));
        attempt.run(&command)?;
    }
    let is_whole = fs::read_to_string(&victim)? == PRECIOUS;
    must(is_whole, Flaw::Lost, format!("{} was written through", path.display()))?;
    if folder.join("exported").is_dir() {
        for file in files(&folder.join("exported"))? {
            let is_secret = fs::read(&file)? == PRECIOUS.as_bytes();
            must(!is_secret, Flaw::Lost, format!("{} hands a link's file on", file.display()))?;
        }
    }
    Ok(())
}

/// Replaces a file by something else.
fn replace(random: &mut Random, path: &Path, victim: &Path) -> Result<()> {
    if let Some(parent) = path.parent().filter(|parent| parent.is_dir() && random.once_in(8)) {
        let elsewhere = victim.with_file_name("elsewhere");
        if parent != elsewhere.parent().unwrap_or(parent) {
            fs::rename(parent, &elsewhere)?;
            return link(elsewhere, parent);
        }
    }
    let _ = fs::remove_file(path);
    match random.below(7) {
        0 => {
            let made =
                Command::new("mkfifo").arg(path).status().context("mkfifo does not start")?;
            ensure!(made.success(), "no FIFO at {}", path.display());
        }
        1 => link("/dev/zero", path)?,
        2 => link("/dev/urandom", path)?,
        3 => link(victim, path)?,
        4 => link("nowhere", path)?,
        5 => fs::create_dir(path)?,
        _ => File::create(path)?.set_len(1 << 40)?,
    }
    Ok(())
}

fn link(to: impl AsRef<Path>, path: &Path) -> Result<()> {
    Ok(symlink(to, path)?)
}

/// The files below a folder, or the file itself.
pub(super) fn files(place: &Path) -> Result<Vec<PathBuf>> {
    if place.is_dir() { xtask::command::files(place) } else { Ok(vec![place.to_path_buf()]) }
}
