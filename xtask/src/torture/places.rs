//! FIFOs, devices, links, folders and holes where files should be.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Attempt;
use super::fixtures::TINY;
use super::process::words;
use super::random::Random;

/// A file that others may write into must not change behind a link of a run's folder.
const PRECIOUS: &str = "nothing writes here";

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
        "generate --model model --max-tokens 3 --prompt pipeline".into(),
        "prepare data.bin --out again.bin".into(),
    ];
    for _ in 0..2 {
        let command = words(&attempt.random.of(&commands));
        attempt.run(&command)?;
    }
    ensure!(fs::read_to_string(&victim)? == PRECIOUS, "{} was written through", path.display());
    Ok(())
}

/// Puts something else in the place of a file.
fn replace(random: &mut Random, path: &Path, victim: &Path) -> Result<()> {
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

#[cfg(unix)]
fn link(to: impl AsRef<Path>, path: &Path) -> Result<()> {
    Ok(std::os::unix::fs::symlink(to, path)?)
}

#[cfg(not(unix))]
fn link(_: impl AsRef<Path>, path: &Path) -> Result<()> {
    Ok(fs::create_dir(path)?) // links need rights there
}

/// The files below a folder, or the file itself.
pub(super) fn files(place: &Path) -> Result<Vec<PathBuf>> {
    match place.is_dir() {
        true => crate::command::files(place),
        false => Ok(vec![place.to_path_buf()]),
    }
}
